#!/usr/bin/env bash
# When benchmarks/peers/make_env.sh makes its Python environment anew, and where: environment_test.sh SOURCE
# A script stands in for python3 and for the interpreter of each environment.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset XDG_CACHE_HOME
failures=0

mkdir "$work/bin"
cat >"$work/bin/python3" <<'END_OF_PYTHON'
#!/usr/bin/env bash
set -euo pipefail
case "$1 ${2:-}" in
  "-c "*) echo "/usr ${PYTHON_VERSION:-3.11.2}" ;;
  "-m venv") mkdir -p "$3/bin" && touch "$3/pyvenv.cfg" && cp "$0" "$3/bin/python" ;;
  "-m pip")
    echo called >>"$CALLS"
    [ -z "${PIP_FAILS:-}" ] || { echo "ERROR: no such version" >&2 && exit 1; }
    until [ -z "${PIP_WAITS_FOR:-}" ] || [ -e "$PIP_WAITS_FOR" ]; do sleep 0.02; done
    ;;
esac
END_OF_PYTHON
cat >"$work/bin/df" <<'END_OF_DF'
#!/usr/bin/env bash
printf 'Filesystem 1024-blocks Used Available\n/dev/one 0 0 %s\n' "$([[ ${*: -1} == "${FULL:-nowhere}"* ]] && echo 1000 || echo 9000000)"
END_OF_DF
chmod +x "$work/bin"/*
export CALLS=$work/calls PATH=$work/bin:$PATH DEMI_CACHE=$work/cache

# checkout FOLDER
checkout() {
  mkdir -p "$1"/{scripts,benchmarks/peers}
  cp "$source"/scripts/{say,environment}.sh "$1/scripts"
  cp "$source"/benchmarks/peers/make_env.sh "$1/benchmarks/peers"
  echo "torch==2.15.0" >"$1/benchmarks/peers/requirements.txt"
}
one=$work/one two="$work/another checkout"
checkout "$one"
checkout "$two"

# make CODE COUNT CHECKOUT [NAME=VALUE...] [ARGUMENT...]: how it ends, and how often pip is called. The path is in $python, the words in $said.
make() {
  local expected=$1 count=$2 folder=$3 settings=() seen=0 code=0
  shift 3
  while [[ ${1:-} == *=* ]]; do settings+=("$1") && shift; done
  rm -f "$CALLS"
  python=$(env "${settings[@]}" "$folder/benchmarks/peers/make_env.sh" "$@" 2>"$work/said") || code=$?
  said=$(<"$work/said")
  [ ! -e "$CALLS" ] || seen=$(wc -l <"$CALLS")
  [ "$code" = "$expected" ] || failed "exit code $code, expected $expected"
  [ "$seen" = "$count" ] || failed "pip was called $seen times, expected $count"
  [ "$code" != 0 ] || [ -x "$python" ] || failed "$python is no interpreter"
}
failed() {
  echo "FAILED (line ${BASH_LINENO[1]}): $1; it said: $said"
  failures=$((failures + 1))
}
says() { [[ $said == *"$1"* ]] || failed "it does not say '$1'"; }
in_folder() { [[ $python == "$1"*/bin/python ]] || failed "$python is not in $1"; }

make 77 0 "$one" --if-ready
make 0 1 "$one"
in_folder "$work/cache/peer_env-"
first=$python
make 0 0 "$one" PIP_FAILS=yes
make 0 0 "$two"
make 0 0 "$two" --if-ready
[ "$python" = "$first" ] || failed "another checkout has $python"

# Another Python, other requirements; one that is half made, and one that was not used for a while.
make 0 1 "$one" PYTHON_VERSION=3.13.5
second=$python
[ "$second" != "$first" ] || failed "two versions of Python have one environment"
echo "numpy==2.0.0" >>"$two/benchmarks/peers/requirements.txt"
make 1 1 "$two" PIP_FAILS=yes
says "pip cannot install what"
make 77 0 "$two" --if-ready
touch -d '31 days ago' "${second%/bin/python}/ready"
make 0 1 "$two"
[ ! -e "$second" ] || failed "$second was not used for 31 days and is still there"
make 0 0 "$one"
[ "$python" = "$first" ] || failed "the first is gone"

# Two at once.
rm -r "$DEMI_CACHE"
CALLS=$work/calls_of_the_first PIP_WAITS_FOR=$work/go "$one/benchmarks/peers/make_env.sh" >"$work/path" 2>/dev/null &
first_of_two=$!
until compgen -G "$DEMI_CACHE/peer_env-*/pyvenv.cfg" >/dev/null; do sleep 0.02; done
cp "$one"/benchmarks/peers/requirements.txt "$two/benchmarks/peers"
make 77 0 "$two" --if-ready
{ until grep -qs waiting "$work/said"; do sleep 0.02; done && touch "$work/go"; } &
make 0 0 "$two"
says "waiting for another process that makes"
wait "$first_of_two"
[ "$(<"$work/path")" = "$python" ] || failed "two at once have two environments"

# A folder of one's own: made once, and refused if it is something else.
make 0 1 "$one" "$work/mine"
in_folder "$work/mine"
make 0 0 "$one" "$work/mine"
mkdir "$work/home" && touch "$work/home/letters"
make 1 0 "$one" "$work/home"
says "is no Python environment, and is left as it is"
[ -e "$work/home/letters" ] || failed "it removed what is not its own"

# A cache folder that cannot be made, or has no space left.
make 0 1 "$one" DEMI_CACHE=/dev/null/cache
says "the environment is made in $one/build"
in_folder "$one/build/peer_env-"
make 0 0 "$one" DEMI_CACHE=/dev/null/cache
rm -r "$one/build" "$DEMI_CACHE"
make 0 1 "$one" "FULL=$DEMI_CACHE"
in_folder "$one/build/peer_env-"
rm -r "$one/build"
make 1 0 "$one" "FULL=$work"
says "no disk space for the Python environment: 7000 MiB needed"

[ "$failures" -eq 0 ] && echo "all as expected"

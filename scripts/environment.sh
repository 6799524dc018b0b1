# shellcheck shell=bash
# Python environments, in the cache folder for every checkout; for scripts that have sourced say.sh and run in the checkout's root.

# environment_key REQUIREMENTS: of the file's content and of Python, whose path is in an environment.
environment_key() {
  { python3 -c 'import sys; print(sys.base_prefix, sys.version)' && cat "$1"; } | sha256sum | cut -c 1-16
}

# is_environment FOLDER KEY: it is whole. The mark is its last file.
is_environment() { [ -x "$1/bin/python" ] && [ "$(cat "$1/ready" 2>/dev/null)" = "$2" ]; }

# environment_folders NAME KEY: where it is or will be: in the cache folder, or under build/ if that cannot be written to.
environment_folders() { printf '%s\n' "$(cache_dir)/$1-$2" "$PWD/build/$1-$2"; }

# ready_environment NAME REQUIREMENTS [FOLDER]: prints the interpreter if the environment is ready. It asks no registry.
ready_environment() {
  local key folder
  key=$(environment_key "$2") || return 1
  while read -r folder; do
    if is_environment "$folder" "$key"; then
      touch "$folder/ready" 2>/dev/null || true  # used today
      printf '%s\n' "$folder/bin/python"
      return 0
    fi
  done < <([ -n "${3:-}" ] && printf '%s\n' "$3" || environment_folders "$1" "$key")
  return 1
}

# environment NAME REQUIREMENTS MIB [FOLDER]: prints the interpreter of the environment with the packages that the file pins. It is
# made unless it is ready, in FOLDER or where it is for every checkout, and takes MIB there. One process makes it, others wait.
environment() {
  local name=$1 requirements=$2 mib=$3 folder=${4:-} key fallback lock
  ready_environment "$name" "$requirements" "$folder" && return
  key=$(environment_key "$requirements") || die "python3 is missing: apt-get install python3 as root, then this again"
  if [ -z "$folder" ]; then
    { read -r folder && read -r fallback; } < <(environment_folders "$name" "$key")
    mkdir -p "${folder%/*}" 2>/dev/null && [ -w "${folder%/*}" ] && [ "$(free_mib "${folder%/*}")" -ge "$mib" ] || {
      say "${folder%/*} cannot be written to or has no $mib MiB: the environment is made in ${fallback%/*}"
      folder=$fallback
    }
  fi
  mkdir -p "$(dirname "$folder")" && exec {lock}>"$folder.lock" || die "cannot write to $(dirname "$folder")"
  flock -n "$lock" || { say "waiting for another process that makes $folder" && flock "$lock"; }
  is_environment "$folder" "$key" || make_environment "$folder" "$requirements" "$mib"
  exec {lock}>&-
  remove_unused_environments "$name"
  ready_environment "$name" "$requirements" "$folder"
}

# make_environment FOLDER REQUIREMENTS MIB: in its last place, since scripts in its bin/ hold the path.
make_environment() {
  [ ! -e "$1" ] || [ -e "$1/pyvenv.cfg" ] || [ -z "$(ls -A "$1")" ] || die "$1 is no Python environment, and is left as it is"
  need_space "$1" "$3" "the Python environment"
  say "making the Python environment $1 with pip"
  rm -rf "$1"
  python3 -m venv "$1" >&2 || die "python3 cannot make an environment: apt-get install python3-venv as root, then this again"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$2" >&2 || die "pip cannot install what $2 names"
  environment_key "$2" >"$1/ready"
}

# remove_unused_environments NAME: those in the cache folder that nobody has used for 30 days.
remove_unused_environments() {
  local mark
  while read -r mark; do
    say "removing ${mark%/ready}, which was not used for 30 days"
    rm -rf "${mark%/ready}" "${mark%/ready}.lock"
  done < <(find "$(cache_dir)" -mindepth 2 -maxdepth 2 -path "*/$1-*/ready" -mtime +30 2>/dev/null)
}

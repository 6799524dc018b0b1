#!/usr/bin/env bash
# A week in minutes: a run that is killed, finds its disk full, its last checkpoint damaged and its time over, and is started again
# by a script of ten lines, against the same run without all that. The weights, the last checkpoint and the lines of metrics.jsonl
# (without times) must have the same bits. benchmarks/week.sh [--short] [DEMI]
#
# Exit codes: 0 the same bits, 1 others, 2 usage. The log goes to stdout; --keep FOLDER keeps the folders.
# shellcheck disable=SC2009
set -uo pipefail
export LC_ALL=C

kills=100 steps=2000 full=60 limit=60 size=640 batches=20 rows=1024 every=10 keep="" demi=build/release/demi
while [ $# -gt 0 ]; do
  case $1 in
    --short) kills=6 steps=16000 full=4 limit=auto size=192 batches=100 rows=64 every=50 ;;
    --keep) keep=${2:?--keep FOLDER}; shift ;;
    -*) sed -n '2,5s/^# //p' "$0"; exit 2 ;;
    *) demi=$1 ;;
  esac
  shift
done
[ -x "$demi" ] || { echo "no program at $demi; name it: benchmarks/week.sh DEMI" >&2; exit 2; }
demi=$(realpath "$demi")
work=${keep:-$(mktemp -d)}
mkdir -p "$work"
work=$(realpath "$work")
mounted="" runner=""

finish() {
  [ -z "$runner" ] || kill -KILL "$runner" 2>/dev/null
  [ ! -s "$work/pid" ] || kill -KILL "$(cat "$work/pid")" 2>/dev/null
  wait 2>/dev/null
  [ -z "$mounted" ] || umount "$work/disk"
  [ -n "$keep" ] || rm -rf "$work"
}
trap finish EXIT
began=$(date +%s.%N)
now() { awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%7.1f", b - a }'; }
say() { echo "$(now) s  $*"; }

run=("$demi" train mlp --device cpu --precision fp16 --in "$size" --out "$size" --batches "$batches" --batch-size "$rows"
     --optimizer adamw --ema 0.9 --clip-norm 1 --growth-interval 50 --epochs $((steps / batches))
     --checkpoint-every "$every" --keep-last 2 --keep-every "$((steps / 4))" --threads 1)

# What a user writes: again until it is done, at once after a kill or the time limit, later after an error.
cat >"$work/again.sh" <<'AGAIN'
#!/bin/bash
# again.sh PIDFILE COMMAND...
trap '' XFSZ
pidfile=$1; shift
while :; do
  "$@" --resume auto & echo $! >"$pidfile"
  wait $!; code=$?
  echo "ended with $code"
  case $code in 0 | 2 | 3 | 4) exit $code ;; 1) sleep 1 ;; esac
done
AGAIN
chmod +x "$work/again.sh"

say "the undisturbed run: $steps steps"
"${run[@]}" --run-dir "$work/undisturbed" >"$work/undisturbed.out" 2>"$work/undisturbed.log" || { cat "$work/undisturbed.log"; exit 1; }
alone=$(now)
say "it has ended"
[ "$limit" != auto ] || limit=$(awk -v t="$alone" 'BEGIN { printf "%.1f", (t > 20 ? 0.15 * t : 3) }')

mkdir -p "$work/disk"
if mount -t tmpfs -o size=256m none "$work/disk" 2>/dev/null; then
  mounted=yes
  say "the disk is a tmpfs of 256 MB"
else
  say "no file system may be mounted here: a full disk is a limit on the size of the process's files (EFBIG for ENOSPC)"
fi
"$work/again.sh" "$work/pid" "${run[@]}" --run-dir "$work/disk/runs" --stop-after "${limit}s" >"$work/week.out" 2>"$work/week.log" &
runner=$!

checkpoints() { echo "$work"/disk/runs/*/checkpoints; }
is_running() { kill -0 "$runner" 2>/dev/null; }
ended() { grep -c "^ended with $1\$" "$work/week.out"; }
count() { grep -c "$1" "$work/week.log"; }
random() { awk -v low="$1" -v high="$2" -v seed="$RANDOM" 'BEGIN { srand(seed); printf "%.3f", low + rand() * (high - low) }'; }
RANDOM=1  # the same instants each time, as far as the machine's speed is the same

# A process of its own each time: the pid is another after a kill.
kill_it() {
  local pid
  pid=$(cat "$work/pid" 2>/dev/null) && kill -KILL "$pid" 2>/dev/null || return 1
  # Where the script that started it is held, it stays as a zombie.
  while grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$pid/status"; do sleep 0.01; done
  killed=$((killed + 1))
  # A save's folder of its own: what an earlier kill left stands until the next save.
  local written
  written=$(ls -di "$(checkpoints)"/*.tmp 2>/dev/null)
  [ -z "$written" ] || [ "$written" = "$seen" ] || within_save=$((within_save + 1))
  seen=$written
  return 0
}
killed=0 within_save=0 seen=""

# 1. The time limit, once: one process is left alone until it ends by itself.
while is_running && [ "$(ended 75)" = 0 ]; do sleep 0.2; done
say "a process ended with 75 after $limit s"

# Waits until another process than this one runs. The script empties its file before it writes it.
wait_for_another() {
  while is_running && { [ ! -s "$work/pid" ] || [ "$(cat "$work/pid")" = "$1" ]; }; do sleep 0.02; done
}

# Waits until a save is being written, ten seconds at most.
wait_for_save() {
  local end=$((SECONDS + 10))
  until [ $SECONDS -ge $end ]; do
    compgen -G "$(checkpoints)/*.tmp" >/dev/null &&
      [ "$(ls -di "$(checkpoints)"/*.tmp 2>/dev/null)" != "$seen" ] && break
  done
}

# 2. Half of the kills, each some time after a start, each fifth within a save.
kill_times() {
  local until=$((killed + $1)) before
  while is_running && [ $killed -lt $until ]; do
    before=$(cat "$work/pid")
    sleep "$(random 0.2 2.2)"
    [ $((killed % 5)) != 4 ] || wait_for_save
    kill_it || continue
    wait_for_another "$before"
  done
}
kill_times $((kills / 2))
say "killed $killed times"
is_running || { say "the run has ended too early: more steps are needed"; exit 1; }

# 3. The last checkpoint is damaged while no process runs: the script is held for a moment.
while is_running && ! [ -e "$(checkpoints)/last" ]; do sleep 0.1; done
kill -STOP $runner
kill_it || { say "no process runs that could be killed"; exit 1; }
last=$(checkpoints)/$(head -n 1 "$(checkpoints)/last")
printf 'X' | dd of="$last/model.safetensors" bs=1 seek=100000 conv=notrunc status=none
say "killed, and a byte of ${last##*/} was changed"
kill -CONT $runner

# 4. The disk is full for a while, in which it is killed, too. First it saves again: a process that starts without room cannot.
saved=$(cat "$(checkpoints)/last")
end=$((SECONDS + 120))
until [ "$(cat "$(checkpoints)/last")" != "$saved" ] || [ $SECONDS -ge $end ]; do sleep 0.1; done
pid=""
if [ -n "$mounted" ]; then
  dd if=/dev/zero of="$work/disk/filler" bs=1M status=none 2>/dev/null
  say "the disk is full: $(df --output=avail "$work/disk" | tail -n 1 | tr -d ' ') kB are left"
else
  pid=$(cat "$work/pid")
  prlimit --pid "$pid" --fsize=1: 2>/dev/null
  say "no file of process $pid may grow"
fi
sleep "$(awk -v s=$full 'BEGIN { print s / 2 }')"
kill_it && say "killed on the full disk"
sleep "$(awk -v s=$full 'BEGIN { print s / 2 }')"
if [ -n "$mounted" ]; then rm "$work/disk/filler"; fi
say "there is room again, after $full s"

is_running || { say "the run has ended too early: more steps are needed"; exit 1; }
# 5. The other kills, and then it is left alone.
kill_times $((kills - killed))
say "killed $killed times, $within_save of them within a save; now it is left alone"
wait $runner
code=$?
runner=""
total=$(now)
say "the script has ended with $code"

same=yes
compare() { if cmp -s "$2" "$3"; then say "the same bits: $1"; else say "OTHER BITS: $1"; same=no; fi; }
lines() { sed -E 's/,"[a-z_]*seconds":[^,}]*//g' "$1"/*/metrics.jsonl; }
other=$(echo "$work"/disk/runs/*/) this=$(echo "$work"/undisturbed/*/)
[ "$(echo "$work"/disk/runs/*/ | wc -w)" = 1 ] || { say "OTHER: more than one run folder"; same=no; }
compare "metrics.jsonl without times, $(lines "$work/disk/runs" | wc -l) lines" <(lines "$work/undisturbed") <(lines "$work/disk/runs")
# But for the word of --stop-after among their settings.
for name in "last checkpoint" model.safetensors; do
  what=/
  [ "$name" = "last checkpoint" ] || what=/$name
  "$demi" inspect --diff "$this$what" "$other$what" --json >"$work/difference" 2>&1
  if grep -q '"different_tensors": 0,' "$work/difference" && grep -q '"numbers": \[\]' "$work/difference"; then
    say "the same bits: tensors and numbers of the run's $name"
  else
    say "OTHER BITS: $name"
    head -n 20 "$work/difference"
    same=no
  fi
done
kept() { (cd "$1" && echo step-*); }
say "kept: $(kept "$(checkpoints)")"
say "ends by kill: $(ended 137), by --stop-after (75): $(ended 75), by an error (1): $(ended 1), done (0): $(ended 0)"
say "checkpoints passed over: $(count 'is damaged and is kept'), outages warned of: $(count 'could not be saved, and training goes on')"
say "$(awk -v t="$total" -v a="$alone" 'BEGIN { printf "%.0f s, and the undisturbed run %.0f s", t - a, a }')"
if [ $same = no ] || [ $code != 0 ] || [ $killed -lt "$kills" ]; then
  tail -n 30 "$work/week.log"
  exit 1
fi

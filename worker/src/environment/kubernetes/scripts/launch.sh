# Starts a command once, and prints its output from an offset until it ends.
# Arguments: id, bytes of the runner's script on standard input (0: do not start), offsets in both
# outputs, mark of frames, shell.
export path="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
PATH=$path:/.rollout/bin
umask 022
# The shell itself prints how its children ended; that is no output of the command.
exec 5>&2 2>/dev/null
d=/.rollout/c/$1 bytes=$2 out=$3 err=$4 mark=$5 shell=$6
frame() { printf '\0%s%s\n' "$mark" "$1"; }
# The last frame. Nothing is removed before the reader has confirmed it, and this process does not
# end before, because a server may drop output of processes that have ended.
finish() {
  frame "$1"
  read -r a && [ "$a" = ok ] && rm -rf "$d"
  exit 0
}
# State and following fields of process $1, empty for one that is gone, without forks. Its name may
# contain anything.
stat() {
  s=
  { while IFS= read -r l || [ -n "$l" ]; do s="$s$l"; done </proc/$1/stat; } 2>/dev/null
  s=${s##*') '}
}
# Start time of process $1 in clock ticks, empty for one that has ended.
started() {
  stat "$1"
  set -- $s
  case $1 in Z | X) st= ;; *) st=${20} ;; esac
}
if [ "$bytes" -gt 0 ]; then
  t=/.rollout/c/t.$1.$$
  head -c "$bytes" >"$t" 2>/dev/null
  [ "$(wc -c <"$t")" -eq "$bytes" ] || { rm -f "$t"; finish n; }
  # Only one of several attempts makes the directory.
  if mkdir "$d" 2>/dev/null; then
    : >"$d/out"
    : >"$d/err"
    mv "$t" "$d/run"
    if command -v setsid >/dev/null; then
      setsid "$shell" "$d/run" "$d" </dev/null >/dev/null 2>&1 &
    else
      "$shell" "$d/run" "$d" </dev/null >/dev/null 2>&1 &
    fi
  else
    rm -f "$t"
  fi
fi
i=0
while [ ! -s "$d/pid" ]; do
  i=$((i + 1))
  [ -d "$d" ] && [ $i -lt 1000 ] || finish n
  sleep 0.01 2>/dev/null || sleep 1
done
frame s
read -r pid start <"$d/pid"
for f in "$out $d/out" "$err $d/err"; do
  h=0
  [ -f "${f#* }.hole" ] && read -r h <"${f#* }.hole"
  [ "${f%% *}" -ge "$h" ] || finish l
done
exec 3<"$d/out" 4<"$d/err"
skip() {
  [ $(($2 / 65536)) -eq 0 ] || dd bs=65536 count=$(($2 / 65536)) <&$1 >/dev/null 2>&1
  [ $(($2 % 65536)) -eq 0 ] || dd bs=$(($2 % 65536)) count=1 <&$1 >/dev/null 2>&1
}
skip 3 "$out"
skip 4 "$err"
pos() { read -r k p </proc/$$/fdinfo/$1; }
# Frees the disk space of output that was read long ago.
trim() {
  h=0
  [ -f "$1.hole" ] && read -r h <"$1.hole"
  [ $(($2 - h)) -gt 268435456 ] || return 0
  n=$(($2 - 134217728))
  echo $n >"$1.hole"
  fallocate -p -o $h -l $((n - h)) "$1" 2>/dev/null
}
copy() {
  : >"$d/seen.$$"
  cat <&3
  cat <&4 >&5
  pos 3; o=$p
  pos 4; e=$p
}
# Whether everything that an ended command wrote to output $1 is in its file: its reader has ended, or
# sleeps because the pipe is empty. A reader that gets no processor time does neither.
read_out() {
  [ -f "$d/$1z" ] && return 0
  [ -s "$d/$1c" ] || return 1
  read -r r <"$d/$1c"
  stat "$r"
  case $s in '' | [SZX]*) ;; *) return 1 ;; esac
}
oom() {
  k=0
  for f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r $f ] || continue
    while read -r name value; do [ "$name" = oom_kill ] && k=$value; done <$f
    break
  done
}
n=0 beat=0 dead=0 late=0 looks=0 o=0 e=0 max= last=
while :; do
  # Looked at before the output, so that all output of an ended command is copied.
  if [ -f "$d/code" ]; then end=code; elif [ -f "$d/fail" ]; then end=fail; else end=; fi
  closed=
  [ -f "$d/oz" ] && [ -f "$d/ez" ] && closed=yes
  arrived=
  [ "$end$dead" != 0 ] && read_out o && read_out e && arrived=yes
  # Files that are older than the last copy are not read again: each read is a process.
  if [ "$end$dead" != 0 ] || [ ! "$d/seen.$$" -nt "$d/out" ] || [ ! "$d/seen.$$" -nt "$d/err" ]; then
    copy
  fi
  if [ "$end" = fail ]; then
    read -r why <"$d/fail"
    finish "f $why"
  elif [ "$end" ]; then
    # A process that the command left behind may hold its outputs, and even fill them: pipes have held
    # less than 4 MiB of the command itself.
    looks=$((looks + 1))
    [ "$arrived" ] && late=$((late + 1))
    [ "$max" ] || max=$((o + e + 8388608))
    if [ "$closed" ] || [ $late -gt 6 ] || [ $((o + e)) -gt $max ] || [ $looks -gt 3000 ]; then
      [ "$closed" ] || kill "$(cat "$d/oc")" "$(cat "$d/ec")" 2>/dev/null
      read -r code <"$d/code"
      oom
      finish "e $code $o $e $k"
    fi
    sleep 0.02 2>/dev/null || sleep 1
    continue
  fi
  st=
  started "$pid"
  if [ "$st" != "$start" ]; then
    # The runner was killed. It may have written its result just before.
    dead=$((dead + 1))
    if [ "$arrived" ] && [ $dead -gt 1 ] || [ $dead -gt 500 ]; then
      oom
      finish "e 137 $o $e $k"
    fi
    sleep 0.02 2>/dev/null || sleep 1
    continue
  fi
  if [ "$o $e" != "$last" ]; then
    last="$o $e"
    [ $n -gt 15 ] && n=15
    trim "$d/out" "$o"
    trim "$d/err" "$e"
  fi
  n=$((n + 1))
  if [ $n -lt 15 ]; then t=0.02; elif [ $n -lt 40 ]; then t=0.1; else t=0.5; fi
  sleep $t 2>/dev/null || sleep 1
  beat=$((beat + 1))
  [ $beat -ge 30 ] && { beat=0; frame b; }
done

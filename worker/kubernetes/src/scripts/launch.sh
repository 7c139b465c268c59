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
# Ends after the answer of the client. The readers of pipes that are still open do not fill the disk.
leave() {
  if [ "$a" = ok ]; then
    for i in o e; do quiet $i || kill "$r" 2>/dev/null; done
    rm -rf "$d"
  fi
  exit 0
}
# The last frame. Nothing is removed before the client has confirmed it, and this process does not
# end before, because a server may drop output of processes that have ended.
finish() {
  frame "$1"
  if [ "$answer" ]; then wait "$answer"; read -r a <"$d/a.$$"; else read -r a; fi
  leave
}
answer=
# State and following fields of process $1, empty for one that is gone, without forks. Its name may
# contain anything.
stat() {
  s=
  { while IFS= read -r l || [ -n "$l" ]; do s="$s$l"; done </proc/$1/stat; } 2>/dev/null
  s=${s##*') '}
}
# Whether the runner lives. A state that cannot be read says nothing.
alive() {
  stat "$pid"
  [ "$s" ] || { [ -e "/proc/$pid" ]; return; }
  set -- $s
  case $1 in Z | X) return 1 ;; esac
  [ "${20}" = "$start" ]
}
# Whether nothing more arrives in the file of output $1: its reader $r has ended.
quiet() {
  r=
  [ -s "$d/$1z" ] && return 0
  [ -s "$d/$1c" ] || return 1
  read -r r t <"$d/$1c"
  stat "$r"
  case $s in [ZX]*) return 0 ;; '') [ ! -e "/proc/$r" ]; return ;; esac
  # Another process may have its number by now.
  set -- $s
  [ "$t" ] && [ "${20}" != "$t" ]
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
      setsid "$shell" "$d/run" "$d" </dev/null >/dev/null 2>&1 5>&- &
    else
      "$shell" "$d/run" "$d" </dev/null >/dev/null 2>&1 5>&- &
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
  [ "${f%% *}" -ge "$h" ] || finish "l removed"
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
# A copy that failed is repeated by the next call.
copy() {
  : >"$d/seen.$$"
  cat <&3 || exit 1
  cat <&4 >&5 || exit 1
  pos 3 && o=$p && pos 4 && e=$p || exit 1
}
oom() {
  k=0
  for f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r $f ] || continue
    while read -r name value; do [ "$name" = oom_kill ] && k=$value; done <$f
    break
  done
}
# Reads the answer of the client while output is copied.
listen() {
  exec 6<&0
  { read -r a; echo "$a" >"$d/a.$$"; } <&6 >/dev/null 2>&1 5>&- &
  answer=$!
}
# Marks the ends of the outputs in place of a runner that was killed. No open waits.
mark_ends() {
  for i in o e; do
    printf '\0rollout:%s:\n' "${d##*/}" 1<>"$d/$i" 5>&- &
  done
}
n=0 beat=0 dead=0 looks=0 max=3000 o=0 e=0 end= last=
while :; do
  # Looked at before the output, so that all output of an ended command is copied.
  why= lost=
  for i in o e; do
    [ -s "$d/${i}z" ] && read -r lost <"$d/${i}z"
  done
  [ -s "$d/fail" ] && read -r why <"$d/fail"
  [ $dead -gt 1 ] && end=k
  [ -s "$d/code" ] && read -r end <"$d/code"
  still=
  [ "$end" ] && quiet o && quiet e && still=yes
  # Files that are older than the last copy are not read again: each read is a process.
  if [ "$end$why" ] || [ ! "$d/seen.$$" -nt "$d/out" ] || [ ! "$d/seen.$$" -nt "$d/err" ]; then
    copy
  fi
  [ "$why" ] && finish "f $why"
  beat=$((beat + 1))
  [ $beat -ge 30 ] && { beat=0; frame b; }
  if [ "$end" ]; then
    # The client finds the marks. A process that the command left behind may hold the pipes, so that
    # their readers go on; a reader that was stopped never ends.
    looks=$((looks + 1))
    [ "$end" = k ] && max=500
    if [ "$still" ] || [ $looks -gt $max ]; then
      oom
      finish "e $end $o $e $k"
    fi
    if [ -z "$answer" ]; then
      oom
      [ "$end" = k ] && mark_ends
      frame "c $end $k"
      listen
    elif [ -s "$d/a.$$" ]; then
      read -r a <"$d/a.$$"
      leave
    fi
    sleep 0.02 2>/dev/null || sleep 1
    continue
  fi
  if ! alive; then
    # The runner was killed. It may have written its result just before.
    dead=$((dead + 1))
    continue
  fi
  # The runner holds the pipes open, so that their readers cannot have ended before it.
  [ "$lost" ] && finish "l $lost"
  if [ "$o $e" != "$last" ]; then
    last="$o $e"
    [ $n -gt 15 ] && n=15
    trim "$d/out" "$o"
    trim "$d/err" "$e"
  fi
  n=$((n + 1))
  if [ $n -lt 15 ]; then t=0.02; elif [ $n -lt 40 ]; then t=0.1; else t=0.5; fi
  sleep $t 2>/dev/null || sleep 1
done

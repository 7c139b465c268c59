# Ends the processes of commands in the container of a service, whose own processes stay. Each command
# has recorded its runner; its processes are those below the runner and those in their sessions.
# Prints how many are left.
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}:/.rollout/bin
# Parent, session and start time of process $1, empty for one that has ended.
rd() {
  s= z=
  { while IFS= read -r l || [ -n "$l" ]; do s="$s$l"; done </proc/$1/stat; } 2>/dev/null
  [ -n "$s" ] || return 1
  s=${s##*') '}
  set -- $s
  z=$1 pp=$2 ss=$4 st=${20}
}
P=" " S=" "
for f in /.rollout/c/*/pid; do
  [ -f "$f" ] || continue
  read -r p start <"$f"
  if rd $p; then
    [ "$st" = "$start" ] || continue
    P="$P$p "
    [ "$ss" != $p ] && continue
  fi
  # A session goes on after its leader, whose number is not used again until then.
  S="$S$p "
done
n=0
while :; do
  left=0
  for d in /proc/[0-9]*; do
    p=${d#/proc/}
    # The first process is the service.
    [ $p = 1 ] || [ $p = $$ ] && continue
    rd $p || continue
    case $z in Z | X) continue ;; esac
    case "$S" in
    *" $ss "*) ;;
    *) case "$P" in *" $pp "*) S="$S$ss " ;; *) continue ;; esac ;;
    esac
    P="$P$p "
    left=$((left + 1))
    kill -s KILL $p 2>/dev/null
  done
  n=$((n + 1))
  [ $left = 0 ] || [ $n -ge 200 ] && break
done
echo "left=$left passes=$n"

# Ends every process of the container but pid 1, this one, and the tree of pid 1's oldest child (the
# keep-alive). With $ROLLOUT_SWEEP set to `all`, pid 1 is the keep-alive, and its children end too.
# Run as root by `/bin/sh -c`. Uses shell builtins only: nothing can be forked when the limit of
# processes is reached, and an image may have no ps or pkill.

# Reads state, parent and start time of process $1 into z, pp, st. The name in the file may contain
# anything, newlines and parentheses included, so the fields start after the last parenthesis.
rd() {
  s=
  { while IFS= read -r l || [ -n "$l" ]; do s="$s$l"; done </proc/$1/stat; } 2>/dev/null
  [ -n "$s" ] || return 1
  s=${s##*') '}
  set -- $s
  z=$1 pp=$2 st=${20}
}

# Stops every process at once, so that none can escape the kill below by forking. The kernel skips
# pid 1 and the caller.
kill -STOP -1

# The oldest child of pid 1: nothing an agent starts can be older.
o=
for d in /proc/[0-9]*; do
  [ "$ROLLOUT_SWEEP" = all ] && break
  p=${d#/proc/}
  rd $p || continue
  if [ "$pp" = 1 ] && { [ -z "$o" ] || [ "$st" -lt "$ot" ] ||
    { [ "$st" = "$ot" ] && [ "$p" -lt "$o" ]; }; }; then
    o=$p ot=$st
  fi
done

n=0 killed=0
while :; do
  # The processes to keep: the oldest child and its descendants.
  K=" $o "; c=1
  while [ $c = 1 ]; do
    c=0
    for d in /proc/[0-9]*; do
      p=${d#/proc/}
      case "$K" in *" $p "*) continue ;; esac
      rd $p || continue
      case "$K" in *" $pp "*) K="$K$p "; c=1 ;; esac
    done
  done
  # Kills every other process until a pass finds none alive.
  left=0
  for d in /proc/[0-9]*; do
    p=${d#/proc/}
    [ $p = 1 ] || [ $p = $$ ] && continue
    case "$K" in *" $p "*) continue ;; esac
    rd $p || continue
    case $z in Z | X) continue ;; esac
    left=$((left + 1))
    kill -s KILL $p 2>/dev/null && killed=$((killed + 1))
  done
  n=$((n + 1))
  [ $left = 0 ] && break
  [ $n -ge 200 ] && break
done

for p in $K; do kill -s CONT $p; done
echo "left=$left passes=$n killed=$killed keep=$K"
[ $left = 0 ]

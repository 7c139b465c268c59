# Waits until the programs that the container runs by itself have settled: until none is left beside
# the command that keeps it alive, or until processes and listening sockets have not changed for some
# time. Prints what ended the wait.
# Arguments: longest wait and time without a change, in hundredths of a second; the command that keeps
# the container alive; directory of the processes.
# Uses shell builtins and sleep only: an image may have no ps.
limit=$1 calm=$2 keep=$3 proc=${4:-/proc}

# Time since the start of the system into t.
now() {
  read -r u x <"$proc/uptime"
  t=$((${u%.*} * 100 + 1${u#*.} - 100))
}

# Reads state, parent and start time of process $1 into z, pp, st. The name in the file may contain
# anything, newlines and parentheses included, so the fields start after the last parenthesis.
rd() {
  s=
  { while IFS= read -r l || [ -n "$l" ]; do s="$s$l"; done <"$proc/$1/stat"; } 2>/dev/null
  [ -n "$s" ] || return 1
  s=${s##*') '}
  set -- $s
  z=$1 pp=$2 st=${20}
}

# Reads the arguments of process $1 into a, without separators: shells skip NUL.
args() {
  a=
  { while IFS= read -r l || [ -n "$l" ]; do a="$a$l"; done <"$proc/$1/cmdline"; } 2>/dev/null
}

# Reads the processes that the first process has started into own, each as `pid:parent:start`.
# Processes of commands have a parent outside of the container.
own() {
  all=
  for d in "$proc"/[0-9]*; do
    p=${d##*/}
    rd "$p" || continue
    case $z in Z | X) continue ;; esac
    all="$all$p:$pp:$st "
  done
  own= tree=" 1 " c=1
  while [ $c = 1 ]; do
    c=0
    for e in $all; do
      p=${e%%:*} pp=${e#*:}
      pp=${pp%%:*}
      case $tree in *" $p "*) continue ;; esac
      case $tree in *" $pp "*) tree="$tree$p " own="$own$e " c=1 ;; esac
    done
  done
}

# Sorts the own processes: kept is the command that keeps the container alive with its ancestors,
# idle is whether such a command runs, n and sum are number and identity of the others. held is
# whether one of these has the command as arguments and has not run it yet, next whether one is a
# pause that ends within the longest wait: something follows then.
look() {
  own
  kept=" " idle=
  for e in $own; do
    p=${e%%:*}
    args "$p"
    case $a in
    "/bin/sh-c$keep" | "/.rollout/bin/sh-c$keep" | sleepinfinity | tail-f/dev/null)
      idle=yes
      while [ "$p" ] && [ "$p" != 1 ]; do
        kept="$kept$p "
        up=${own##*" $p:"}
        [ "$up" = "$own" ] && case $own in "$p:"*) up=${own#"$p:"} ;; *) break ;; esac
        p=${up%%:*}
      done
      ;;
    esac
  done
  n=0 sum= held= next=
  for e in $own; do
    p=${e%%:*} pp=${e#*:}
    pp=${pp%%:*}
    case $kept in *" $p "*) continue ;; esac
    args "$p"
    case $a in sleep3600) case $kept in *" $pp "*) continue ;; esac ;; esac
    n=$((n + 1)) sum="$sum$e "
    case $a in *"$keep") held=yes ;; esac
    a=${a##*/}
    case ${a#busybox} in sleep[0-9] | sleep10 | sleep[0-9][.s]* | sleep.[0-9]*) next=yes ;; esac
  done
  k=0
  for f in tcp tcp6; do
    [ -r "$proc/net/$f" ] || continue
    while read -r x l x q x; do
      [ "$q" = 0A ] && k=$((k + 1)) sum="$sum$f:$l "
    done <"$proc/net/$f"
  done
  if [ -r "$proc/net/unix" ]; then
    while read -r x x x q x x l x; do
      [ "$q" = 00010000 ] && k=$((k + 1)) sum="$sum$l "
    done <"$proc/net/unix"
  fi
}

end() {
  echo "until=$1 waited=$((t - began)) processes=$n sockets=$k"
  exit 0
}

now
began=$t last=
while :; do
  look
  now
  [ $n = 0 ] && [ "$idle" ] && end idle
  [ "$sum" = "$last" ] || changed=$t
  last=$sum
  # An entrypoint that has not run its command yet may work for some time before it does.
  [ "$held" ] && need=$((calm * 3)) || need=$calm
  [ -z "$next" ] && [ $((t - changed)) -ge $need ] && end settled
  [ $((t - began)) -ge $limit ] && end limit
  sleep 0.1 2>/dev/null || sleep 1
done

# Runs a command whose outputs go through pipes to files, and writes its exit code. The lines before
# this set user, workdir, search (the command's search path) and the arguments, and define vars(),
# which runs a command with the variables.
rm -f "$d/run"
s=
while IFS= read -r l || [ -n "$l" ]; do s="$s$l"; done </proc/$$/stat
s=${s##*') '}
start() { shift 19; echo "$$ $1" >"$d/pid.t"; }
start $s
mv "$d/pid.t" "$d/pid"
# One write each, without processes, which may not be had on a full node.
fail() {
  echo "$1" >"$d/fail"
  exit 0
}
# A shell that cannot start a process ends.
trap '[ -s "$d/fail" ] || echo fork >"$d/fail"' EXIT
group= home= name= uid= gid=
# The user, from the container's own files.
if [ -n "$user" ]; then
  case $user in *:*) group=${user#*:} user=${user%%:*} ;; esac
  while IFS=: read -r n x u g x h x; do
    if [ "$n" = "$user" ] || { [ "$u" = "$user" ] && [ -z "$uid" ]; }; then
      name=$n uid=$u gid=$g home=$h
      [ "$n" = "$user" ] && break
    fi
  done </etc/passwd 2>/dev/null
  if [ -z "$uid" ]; then
    case $user in *[!0-9]*) fail user ;; esac
    uid=$user gid=0 home=/
  fi
  if [ -n "$group" ]; then
    gid=
    while IFS=: read -r n x g x; do
      if [ "$n" = "$group" ] || [ "$g" = "$group" ]; then gid=$g; break; fi
    done </etc/group 2>/dev/null
    if [ -z "$gid" ]; then
      case $group in *[!0-9]*) fail user ;; esac
      gid=$group
    fi
  fi
  [ "$uid" = "$(id -u)" ] && [ -z "$group" ] && uid=
fi
if [ -n "$uid" ]; then
  [ "$(id -u)" = 0 ] || fail switch
  if setpriv --reuid "$uid" --regid "$gid" --clear-groups true 2>/dev/null; then
    groups=--clear-groups
    [ -n "$name" ] && groups=--init-groups
    become() { exec setpriv --reuid "$uid" --regid "$gid" $groups "$@"; }
  elif [ -n "$name" ] && [ -z "$group" ] && command -v su >/dev/null; then
    become() { exec su -p -s /bin/sh -c 'exec "$0" "$@"' -- "$name" "$@"; }
  else
    fail switch
  fi
else
  become() { exec "$@"; }
fi
[ -n "$home" ] && export HOME="$home"
cd "$workdir" 2>/dev/null || fail workdir
case $1 in
*/*) [ -f "$1" ] && [ -x "$1" ] || fail program ;;
*) (PATH=$search; command -v "$1") >/dev/null 2>&1 || fail program ;;
esac
# A group of its own: a command may signal its whole group.
session=
command -v setsid >/dev/null && session=setsid
mkfifo -m 666 "$d/o" "$d/e" || fail spool
# Held open, so that a reader ends only after the mark behind its output, and no open waits.
exec 6<>"$d/o" 7<>"$d/e"
# The output of a command that has ended is read on, so that processes it left behind can write. By
# then the directory may be gone, and `:` would end the shell.
relay() {
  {
    # Not before the pipe is open here, too: a pipe that no process has open is emptied.
    exec 6<&- 7<&-
    trap "echo fork >'$d/$1z'" EXIT
    cat <&3 >>"$d/$2" &
    trap "echo ended >'$d/$1z'" EXIT
    reader=$! i=$1 s=
    while IFS= read -r l || [ -n "$l" ]; do s="$s$l"; done </proc/$reader/stat
    s=${s##*') '}
    set -- $s
    echo "$reader ${20}" >"$d/${i}c"
    wait $reader
    echo ended >"$d/${i}z"
    exec cat <&3 >/dev/null
  } 3<"$d/$1" 2>/dev/null
}
relay o out &
relay e err &
(vars "$@") >"$d/o" 2>"$d/e" </dev/null 6<&- 7<&-
echo $? >"$d/code"
trap - EXIT
# What the command wrote is before this mark, whenever its reader gets to it.
for f in 6 7; do printf '\0rollout:%s:\n' "${d##*/}" >&$f; done

# Prepares a container, and prints its working directory.
# Arguments: requested working directory or nothing, mark of frames.
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}:/.rollout/bin
finish() {
  printf '\0%s%s\n' "$mark" "$1"
  read -r a
  exit 0
}
mark=$2
mkdir -p /.rollout/c 2>/dev/null
chmod 1777 /.rollout/c 2>/dev/null
[ -w /.rollout/c ] || finish "x cannot write to /.rollout"
[ -z "$1" ] || mkdir -p "$1" 2>/dev/null
[ -z "$1" ] || cd "$1" 2>/dev/null || finish "x no directory can be made at the working directory"
missing=
for tool in cat chmod dd env head id ls mkdir mkfifo mv rm sha256sum sleep tail tar tee wc; do
  command -v $tool >/dev/null || missing="$missing $tool"
done
[ -z "$missing" ] || finish "m$missing"
k=0
for f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
  [ -r $f ] || continue
  while read -r name value; do [ "$name" = oom_kill ] && k=$value; done <$f
  break
done
pwd
finish "e $k"

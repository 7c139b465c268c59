# Makes the root of a container and becomes its first process. It runs in new namespaces.
# Arguments: directory of the container, layers below its own files (separated by colons),
# host name, `cgroup.procs` of its control group or nothing, working directory, command.
set -e
directory=$1 layers=$2 name=$3 cgroup=$4 workdir=$5
shift 5
# Before the new /proc is mounted, this is the process ID in the namespace of the host.
read -r pid _ < /proc/self/stat
exec 3>> "$directory/log"
if [ -n "$cgroup" ]; then echo 0 > "$cgroup"; fi
root=$directory/root
mkdir -p "$root" "$directory/upper" "$directory/work" "$directory/usr-upper" "$directory/usr-work"

# Without overlays (a test inside of a container), the layers are copied.
if ! mount -t overlay overlay -o \
    "lowerdir=$layers,upperdir=$directory/upper,workdir=$directory/work" "$root" 2> /dev/null
then
    mount --bind "$root" "$root"
    (
        IFS=:
        for layer in $layers; do set -- "$layer" "$@"; done
        for layer; do [ ! -d "$layer" ] || cp -a "$layer/." "$root/"; done
    )
fi
first=${layers%%:*}
usr=/usr
if [ -d "$first/usr" ]; then usr=$first/usr:/usr; fi
if ! mount -t overlay overlay -o \
    "lowerdir=$usr,upperdir=$directory/usr-upper,workdir=$directory/usr-work" "$root/usr" 2> /dev/null
then
    mount --rbind /usr "$root/usr"
    mount -o remount,bind,ro "$root/usr"
fi
while read -r program; do
    for place in "$root/usr" "$root/usr/local"; do rm -f "$place/bin/$program" "$place/sbin/$program"; done
done < "$directory/removed"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755,size=64k tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : > "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
echo "$name" > "$root/etc/hostname"
printf '127.0.0.1\tlocalhost %s\n' "$name" > "$root/etc/hosts"
cat "$directory/hosts" >> "$root/etc/hosts"
echo "$name" > /proc/sys/kernel/hostname || true
tab=$(printf '\t')
while IFS=$tab read -r source target mode; do
    if [ -d "$source" ]; then
        mkdir -p "$root$target"
    else
        mkdir -p "$root${target%/*}"
        : > "$root$target"
    fi
    mount --bind "$source" "$root$target"
    if [ "$mode" = ro ]; then mount -o remount,bind,ro "$root$target"; fi
done < "$directory/mounts"
ip link set lo up 2> /dev/null || true
[ -z "$workdir" ] || mkdir -p "$root$workdir"
cd "$root"
mkdir -p .pivot
pivot_root . .pivot
cd /
umount -l /.pivot
rmdir /.pivot
echo "$pid"
# The program is looked up from outside first.
read -r _
exec "$@" < /dev/null >&3 2>&3 3>&-

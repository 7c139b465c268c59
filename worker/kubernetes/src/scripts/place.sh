# Makes directories, and extracts an archive from standard input at /.
# Arguments: bytes of the archive, mark of frames. The lines after this call the functions.
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}:/.rollout/bin
umask 022
set -f
bytes=$1 mark=$2 f=/.rollout/c/p.$$
finish() {
  printf '\0%s%s\n' "$mark" "$1"
  rm -f "$f.a" "$f.sum" "$f.log" "$f.rc"
  read -r a
  exit 0
}
blocked() { finish "b $1"; }
# A directory open to every user; anything else there is replaced.
dir() {
  if [ ! -d "$1" ] || [ -L "$1" ]; then
    rm -rf "$1" 2>/dev/null
    mkdir -p "$1" 2>/dev/null || blocked "$1"
  fi
  chmod 1777 "$1" 2>/dev/null || [ -w "$1" ] || blocked "$1"
}
# An empty directory with mode $2. A mount point is emptied and stays.
fresh() {
  rm -rf "$1" 2>/dev/null
  mkdir -p "$1" 2>/dev/null || blocked "$1"
  [ -z "$(ls -A "$1" 2>/dev/null)" ] || blocked "$1"
  # A volume belongs to another user, and is open to all.
  chmod "$2" "$1" 2>/dev/null || [ -w "$1" ] || blocked "$1"
}
# A directory for files.
parent() { mkdir -p "$1" 2>/dev/null || blocked "$1"; }
extract() {
  mkfifo "$f.a" || finish "x cannot make a pipe in /.rollout"
  sha256sum <"$f.a" >"$f.sum" &
  head -c "$bytes" | tee "$f.a" | {
    tar -x -p -o -f - -C / 2>"$f.log"
    echo $? >"$f.rc"
    cat >/dev/null
  }
  wait
  read -r rc <"$f.rc"
  read -r sum x <"$f.sum"
  log=$(tail -c 400 "$f.log")
  set -- $log
  finish "e $rc $sum $*"
}

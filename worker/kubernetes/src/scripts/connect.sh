# Whether a connection to the API server can be made from here: every pod has its address. The last frame
# is `open`, `closed`, `again` if a program had no time to connect, or `unknown` if none can tell. Arguments:
# mark of frames, `own` if only the operator's programs are asked.
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}:/.rollout/bin
[ "$2" = own ] && PATH=/.rollout/bin
exec 2>/dev/null
mark=$1 host=$KUBERNETES_SERVICE_HOST port=$KUBERNETES_SERVICE_PORT f=/.rollout/n.$$
finish() {
  printf '\0%s%s\n' "$mark" "$1"
  rm -f "$f"
  read -r a
  exit 0
}
[ "$host" ] && [ "$port" ] || finish unknown
# Runs a program for at most $1 tenths of a second after its first output, and 10 seconds before it: where
# packets are dropped, a connection waits for minutes. 124 is a program that was ended.
limited() {
  most=$1 n=0 late=0
  shift
  "$@" >"$f" 2>&1 </dev/null &
  p=$!
  while kill -0 $p; do
    [ $n -lt "$most" ] && [ $late -lt 100 ] || { kill -s KILL $p; wait $p; return 124; }
    d=1
    sleep 0.1 || { sleep 1; d=10; }
    if [ -s "$f" ]; then n=$((n + d)); else late=$((late + d)); fi
  done
  wait $p
}
if command -v bash >/dev/null; then
  limited 20 bash -c 'echo begins; exec 3<>"/dev/tcp/$0/$1"' "$host" "$port"
  case $? in
  0) finish open ;;
  124) [ -s "$f" ] && finish closed || finish again ;;
  esac
  # A shell that was built without networks says that there is no such file.
  { read -r said; read -r said; } <"$f"
  case $said in *": connect: "*) finish closed ;; esac
fi
if command -v python3 >/dev/null; then
  limited 100 python3 -c 'import socket, sys; a = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), 0, socket.SOCK_STREAM)[0]; s = socket.socket(a[0], a[1]); s.settimeout(2); print("closed" if s.connect_ex(a[4]) else "open")' "$host" "$port"
  read -r said <"$f"
  case $said in open | closed) finish "$said" ;; esac
fi
# Some lack `-z`. The server ends a connection whose other end says nothing more.
if command -v nc >/dev/null; then
  limited 50 nc -w 2 "$host" "$port"
  rc=$?
  [ $rc = 0 ] && finish open
  read -r said <"$f"
  case $rc-$said in
  124-* | *[Uu]sage* | *option*) ;;
  *) finish closed ;;
  esac
fi
finish unknown

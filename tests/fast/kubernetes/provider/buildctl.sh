#!/bin/sh
# Stands for `buildctl` and `buildctl-daemonless.sh`: checks its arguments, runs the steps of the
# Dockerfile in the context, and pushes by a file in /registry.
name=${0##*/} reference= context= cache=yes daemon_no_proxy=$NO_PROXY
daemon_bundle=$SSL_CERT_FILE bundle= dockerfile=
mount=--mount=type=secret,id=rollout-ca-bundle,target=/rollout/ca-bundle.pem,mode=0444
usage() { echo "error: $*" && exit 64; }
if [ "$name" = buildctl ]; then
  [ "$1 $2" = "--addr tcp://buildkitd.test:1234" ] || usage "no daemon at $*"
  shift 2
else
  [ "$BUILDKITD_FLAGS" = --oci-worker-no-process-sandbox ] || usage "wrong flags of the daemon"
fi
[ "$1" = build ] || usage "unknown command $1"
shift
while [ $# -gt 0 ]; do
  case $1 in
  --progress=plain | --frontend=dockerfile.v0) ;;
  --no-cache) cache=no ;;
  --local)
    shift
    case $1 in
    context=/*) context=${1#*=} ;;
    dockerfile=/*) dockerfile=${1#*=} ;;
    *) usage "unknown directory $1" ;;
    esac
    ;;
  --opt)
    shift
    case $1 in
    build-arg:*) export "${1#build-arg:}" ;;
    *) usage "unknown option $1" ;;
    esac
    ;;
  --secret)
    shift
    bundle=${1#id=rollout-ca-bundle,src=}
    [ -f "$bundle" ] || usage "unknown secret $1"
    ;;
  --output)
    shift
    reference=${1#type=image,name=} reference=${reference%,push=true}
    [ "$1" = "type=image,name=$reference,push=true" ] || usage "unknown output $1"
    ;;
  *) usage "unknown argument $1" ;;
  esac
  shift
done
echo "$reference $cache" >>/registry/builds
echo "#1 [internal] load build definition from Dockerfile"
cd "$context" && [ -f "$dockerfile/Dockerfile" ] || usage "no Dockerfile"
while read -r instruction step; do
  case $instruction in
  FROM) ;;
  DAEMON) echo "could not connect to unix:///run/buildkitd.sock after 10 trials" && exit 1 ;;
  ARG) export $step ;;
  RUN)
    case $step in "$mount "*) step=${step#"$mount "} && SSL_CERT_FILE=$bundle ;; esac
    echo "#2 RUN $step"
    (eval "$step")
    code=$?
    if [ $code != 0 ]; then
      echo "error: failed to solve: process \"/bin/sh -c $step\" did not complete successfully: exit code: $code"
      exit 1
    fi
    ;;
  *) echo "error: failed to solve: dockerfile parse error: unknown instruction: $instruction" && exit 1 ;;
  esac
done <"$dockerfile/Dockerfile"
if [ -f /registry/password ] && ! grep -q "$(cat /registry/password)" "$DOCKER_CONFIG/config.json"; then
  echo "error: failed to solve: failed to push $reference: unexpected status: 401 Unauthorized"
  exit 1
fi
mkdir -p "/registry/${reference%/*}"
cp "$dockerfile/Dockerfile" "/registry/$reference.part" && mv "/registry/$reference.part" "/registry/$reference"

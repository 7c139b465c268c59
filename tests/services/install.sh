# Installation of the programs that the services need. Sourced by tests/run.

# Program and Debian package of each dependency except Rust.
programs="dockerd:docker.io docker:docker.io debootstrap:debootstrap docker-registry:docker-registry ip:iproute2"
# Only root can change the networks of containers.
if [ "$(id -u)" -eq 0 ]; then programs+=" nft:nftables"; fi
readonly programs

# Prints the consequence of a missing program.
without() {
  case $1 in
    dockerd | docker) echo "tests with real containers are ignored" ;;
    debootstrap) echo "debian:bookworm-slim can only be pulled, not built" ;;
    ip) echo "tests that stop a Docker engine are ignored" ;;
    nft) echo "the test of allowed hosts without a proxy is ignored" ;;
    docker-registry) echo "tests that pull images are ignored" ;;
  esac
}

# Puts the packages of missing programs into `packages`.
packages_wanted() {
  local pair
  packages=()
  for pair in $programs; do
    command -v "${pair%%:*}" >/dev/null || packages+=("${pair##*:}")
  done
}

install_packages() {
  packages_wanted
  [ ${#packages[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    say "not root: cannot install ${packages[*]}"
  elif ! command -v apt-get >/dev/null; then
    say "no apt-get: cannot install ${packages[*]}"
  else
    say "installing ${packages[*]}"
    apt_install || say "apt-get failed: $(tail -n 1 "$logs/apt.log")"
  fi
  local pair
  for pair in $programs; do
    command -v "${pair%%:*}" >/dev/null ||
      lack "program ${pair%%:*} (Debian package ${pair##*:}): $(without "${pair%%:*}")"
  done
}

# Installs without starting the packages' services: docker-registry would listen on all addresses.
apt_install() {
  local policy=/usr/sbin/policy-rc.d made= status=0
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && made=yes
  fi
  {
    apt-get update &&
      # Since Debian 13 the client is a separate package.
      if apt-cache show docker-cli; then packages+=(docker-cli); fi &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
  } >"$logs/apt.log" 2>&1 </dev/null 3>&- 9>&- || status=$?
  [ -z "$made" ] || rm -f "$policy"
  return "$status"
}

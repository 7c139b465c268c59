# Images that are present, pulled, or built with debootstrap: debian:bookworm-slim, and for agents that
# need Python 3.12 ubuntu:24.04. Sourced by tests/run.

readonly base_image=debian:bookworm-slim
readonly ubuntu_image=ubuntu:24.04
# The keys of its archive, which no package of Debian has.
readonly ubuntu_keys=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
readonly ubuntu_keys_sha256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8

# Whether an image is there, or can be pulled.
image_present() {
  docker image inspect "$1" >/dev/null 2>&1 && return 0
  if timeout 60 docker pull --quiet "$1" >"$logs/pull.log" 2>&1; then
    say "pulled $1"
    return 0
  fi
  say "cannot pull $1 ($(tail -n 1 "$logs/pull.log" | cut -c 1-120)): building it"
  return 1
}

base_image() {
  image_present "$base_image" && return 0
  local tar=$cache/$(dpkg --print-architecture)-minbase.tar
  if [ ! -s "$tar" ] && ! base_image_make "$tar"; then
    lack "the image $base_image (log: $logs/debootstrap.log): $(without docker)"
    return 1
  fi
  docker import --change 'CMD ["bash"]' "$tar" "$base_image" >/dev/null
}

ubuntu_image() {
  image_present "$ubuntu_image" && return 0
  local tar=$cache/$(dpkg --print-architecture)-noble.tar
  local mirror=http://archive.ubuntu.com/ubuntu
  [ "$(dpkg --print-architecture)" = amd64 ] || mirror=http://ports.ubuntu.com/ubuntu-ports
  if [ ! -s "$tar" ] && ! ubuntu_image_make "$tar" "$mirror"; then
    lack "the image $ubuntu_image (log: $logs/debootstrap.log), or tests without the agent openhands"
    return 1
  fi
  docker import --change 'CMD ["bash"]' "$tar" "$ubuntu_image" >/dev/null
}

ubuntu_image_make() {
  local tar=$1 mirror=$2 keys=$work/ubuntu-keyring
  /usr/lib/apt/apt-helper download-file "$mirror/$ubuntu_keys" "$keys.deb" \
    "SHA256:$ubuntu_keys_sha256" >>"$logs/debootstrap.log" 2>&1 &&
    dpkg-deb -x "$keys.deb" "$keys" || return 1
  # Debian's debootstrap may not know the suite: the steps have been the same since gutsy.
  debootstrap_tar "$tar" noble "$mirror" gutsy --components=main,universe \
    --keyring="$keys/usr/share/keyrings/ubuntu-archive-keyring.gpg"
}

# Sets `mirror` and `suite` to apt's Debian mirror, or to that of this system's distribution.
base_image_origin() {
  local of="Created-By: Packages"
  suite=bookworm
  mirror=$(apt-get indextargets --format '$(REPO_URI)' "$of" "Origin: Debian" "Component: main" |
    grep -v security | head -n 1)
  if [ -z "$mirror" ]; then
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "$of" "Component: main" \
      "Codename: $suite" | grep -v security | head -n 1)
  fi
  [ -n "$mirror" ] && [ -n "$suite" ]
}

base_image_make() {
  local tar=$1 suite mirror
  if ! base_image_origin 2>>"$logs/debootstrap.log"; then
    apt-get update >>"$logs/debootstrap.log" 2>&1 3>&- 9>&- || return 1
    base_image_origin || return 1
  fi
  debootstrap_tar "$tar" "$suite" "$mirror" ""
}

# debootstrap_tar TAR SUITE MIRROR SCRIPT OPTION…: makes an archive of a small system.
debootstrap_tar() {
  local tar=$1 suite=$2 mirror=$3 script=$4 root=$work/root proxy=
  shift 4
  [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null || return 1
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  env ${proxy:+http_proxy="$proxy" https_proxy="$proxy"} \
    debootstrap --variant=minbase "$@" "$suite" "$root" "$mirror" ${script:+"$script"} \
    >>"$logs/debootstrap.log" 2>&1 3>&- 9>&- || return 1
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc \
    "$root"/usr/share/man "$root"/usr/share/locale
  tar -C "$root" --numeric-owner --exclude=./dev/* --exclude=./proc/* --exclude=./sys/* \
    -cf "$tar.partial" . && mv "$tar.partial" "$tar" && rm -rf "$root"
  say "built a system of $suite"
}

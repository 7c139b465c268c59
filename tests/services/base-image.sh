# The image debian:bookworm-slim: present, pulled, or built with debootstrap. Sourced by tests/run.

readonly base_image=debian:bookworm-slim

base_image() {
  docker image inspect "$base_image" >/dev/null 2>&1 && return 0
  if timeout 60 docker pull --quiet "$base_image" >"$logs/pull.log" 2>&1; then
    say "pulled $base_image"
    return 0
  fi
  say "cannot pull $base_image ($(tail -n 1 "$logs/pull.log" | cut -c 1-120)): building it"
  local tar=$cache/$(dpkg --print-architecture)-minbase.tar
  if [ ! -s "$tar" ] && ! base_image_make "$tar"; then
    lack "the image $base_image (log: $logs/debootstrap.log): $(without docker)"
    return 1
  fi
  docker import --change 'CMD ["bash"]' "$tar" "$base_image" >/dev/null
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
  local tar=$1 root=$work/root suite mirror
  [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null || return 1
  if ! base_image_origin 2>>"$logs/debootstrap.log"; then
    apt-get update >>"$logs/debootstrap.log" 2>&1 3>&- 9>&- || return 1
    base_image_origin || return 1
  fi
  local proxy=
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  env ${proxy:+http_proxy="$proxy" https_proxy="$proxy"} \
    debootstrap --variant=minbase "$suite" "$root" "$mirror" >>"$logs/debootstrap.log" 2>&1 3>&- 9>&- ||
    return 1
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc \
    "$root"/usr/share/man "$root"/usr/share/locale
  tar -C "$root" --numeric-owner --exclude=./dev/* --exclude=./proc/* --exclude=./sys/* \
    -cf "$tar.partial" . && mv "$tar.partial" "$tar" && rm -rf "$root"
  say "built $base_image from $suite"
}

# Packages of newer Debian suites, unpacked (not installed) from apt's mirror. Sourced by tests/run.

# suite_unpack SUITE PACKAGE DIRECTORY: unpacks a package and replaces the directory. Runs in a
# subshell, which ends at the first error.
suite_unpack() (
  set -e
  command -v apt-get && command -v dpkg-deb
  mirror=$(suite_mirror)
  [ -n "$mirror" ] || {
    echo "apt has no Debian mirror"
    exit 1
  }
  state=$work/apt-$1-$2
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/unpacked" \
    "$(dirname "$3")"
  echo "deb $mirror $1 main" >"$state/sources.list"
  apt=(apt-get -q -o "Dir::Etc::SourceList=$state/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  (cd "$state" && "${apt[@]}" download "$2")
  dpkg-deb -x "$state/$2"_*.deb "$state/unpacked"
  rm -rf "$3"
  mv "$state/unpacked" "$3"
)

# The first Debian mirror in apt's sources.
suite_mirror() {
  { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list \
    2>/dev/null || true; } |
    sed -n \
      -e 's/^URIs: *\([^ ]*\/debian\)\/\{0,1\}\( .*\)\{0,1\}$/\1/p' \
      -e 's/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\/debian\)\/\{0,1\} .*/\2/p' | head -n 1
}

#!/usr/bin/env bash
# Installs what building kvcachefs needs on Debian 12 or 13: packages, and a libfuse of at least 3.17 where the
# system's is older. Idempotent: when all is there it changes nothing and takes well under a second.
set -euo pipefail

usage() {
  cat <<'EOF'
Usage: mount-scripts/install-deps.sh [SET...] [--libfuse auto|newest|system]

Installs the packages that building kvcachefs needs, with apt-get, as root or through sudo.
Sets, each in addition to the build itself:
  --tests      GoogleTest, Google Benchmark, pytest and the tools the tests call
  --clients    what the tests with real engines' storage code need (Python headers, venv)
  --fuzz       clang 19 with libFuzzer
  --lint       clang-format and clang-tidy
Where libfuse is older than 3.17 (no passthrough, no FUSE over io_uring), a newer one is built from the source package
of a later Debian suite into ${XDG_CACHE_HOME:-~/.cache}/kvcachefs, where the build finds it:
  --libfuse auto     do so when the system's is older than 3.17 (default)
  --libfuse newest   do so also when the system's is 3.17 (3.18 brings FUSE over io_uring)
  --libfuse system   never (one that was built before is used all the same; remove it to be rid of it)
EOF
}

readonly min_libfuse=3.17   # passthrough
readonly best_libfuse=3.18  # FUSE over io_uring
readonly source_suites=(forky sid trixie)

# Also what quickstart.sh calls, which installs no other set: python3 for its chunks, setfattr and getfattr.
build_packages=(g++ cmake ninja-build pkg-config ccache git fuse3 libfuse3-dev liburing-dev libxxhash-dev liblmdb-dev
  libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev zlib1g-dev python3 attr)
libfuse_packages=(meson dpkg-dev libnuma-dev xz-utils ca-certificates debian-archive-keyring)
test_packages=(libgtest-dev libbenchmark-dev python3-pytest python3-pytest-xdist strace util-linux procps psmisc libaio-dev mold)
client_packages=(python3-venv python3-dev python3-pip gcc libc6-dev libaio-dev)
fuzz_packages=(clang-19 libclang-rt-19-dev)
lint_packages=(clang-format-19 clang-tidy-19 shellcheck)

say() { printf 'install-deps: %s\n' "$*"; }
die() {
  printf 'install-deps: %s\n' "$*" >&2
  exit 1
}

packages=("${build_packages[@]}")
libfuse=auto
while [ $# -gt 0 ]; do
  case $1 in
    --tests) packages+=("${test_packages[@]}") ;;
    --clients) packages+=("${client_packages[@]}") ;;
    --fuzz) packages+=("${fuzz_packages[@]}") ;;
    --lint) packages+=("${lint_packages[@]}") ;;
    --libfuse)
      [ $# -ge 2 ] || die "--libfuse needs a value: auto, newest or system"
      libfuse=$2
      shift
      ;;
    --libfuse=*) libfuse=${1#*=} ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) die "unknown option '$1'; --help lists them" ;;
  esac
  shift
done
case $libfuse in
  auto | newest | system) ;;
  *) die "--libfuse is '$libfuse'; it must be auto, newest or system" ;;
esac

# --- packages -------------------------------------------------------------------------------------------------------

# Prints those of the arguments that are not installed. A virtual name (pkg-config on Debian 13) counts as installed
# when a package that provides it is.
missing_packages() {
  local name installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Provides}\n' 2>/dev/null |
    sed -n 's/^installed //p' | tr -d ',' | sed 's/([^)]*)//g' | tr -s ' ' '\n')
  for name in "$@"; do
    grep -qxF -- "$name" <<<"$installed" || printf '%s\n' "$name"
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo -- "$@"
  else
    die "not root and no sudo here: have the administrator run: $*"
  fi
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -qq -y)
  # A fresh image has no package lists; an old one has lists whose files are gone from the mirror.
  if ! as_root "${apt[@]}" --no-install-recommends install "${missing[@]}" >/dev/null 2>&1; then
    if ! as_root "${apt[@]}" update || ! as_root "${apt[@]}" --no-install-recommends install "${missing[@]}" >/dev/null; then
      die "could not install ${missing[*]}: the lines above say why"
    fi
  fi
}

# --- libfuse --------------------------------------------------------------------------------------------------------

version_at_least() { dpkg --compare-versions "$1" ge "$2"; }

# The tag must match mount-scripts/cmake/KvcachefsFuse.cmake: a static archive fits only the system it was built on.
cache_directory() { printf '%s/kvcachefs' "${XDG_CACHE_HOME:-$HOME/.cache}"; }
# shellcheck disable=SC1091
system_tag() { (. /etc/os-release && printf '%s%s-%s' "$ID" "${VERSION_ID-}" "$(uname -m)"); }

# Prints the prefix of the newest libfuse built before, or nothing.
built_libfuse() {
  local found
  found=$(printf '%s\n' "$(cache_directory)"/libfuse-*-"$(system_tag)"/lib/pkgconfig/fuse3.pc | sort -V | tail -n 1)
  [ ! -f "$found" ] || printf '%s' "${found%/lib/pkgconfig/fuse3.pc}"
}

# libfuse_version PREFIX: read from the file, because pkg-config would also ask for what it depends on.
libfuse_version() { sed -n 's/^Version: //p' "$1/lib/pkgconfig/fuse3.pc"; }

# list_mirrors [APT_OPTION...]: the addresses of Debian's main component in this machine's apt configuration.
list_mirrors() {
  local codename
  # shellcheck disable=SC1091
  codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME-}")
  # shellcheck disable=SC2016 # the names are apt's
  apt-get "$@" indextargets --format '$(RELEASE)|$(CODENAME)|$(COMPONENT)|$(ORIGIN)|$(REPO_URI)' |
    awk -F'|' -v codename="$codename" '
      ($1 == codename || $2 == codename) && $3 == "main" && ($4 == "Debian" || $4 ~ /^\$/) && !seen[$5]++ { print $5 }'
}

# debian_mirrors DIRECTORY: the same, also on a machine whose package lists were removed (container images).
debian_mirrors() {
  local mirrors private
  mirrors=$(list_mirrors)
  if [ -z "$mirrors" ]; then
    private=(-qq -o "Dir::State::lists=$1/lists" -o APT::Sandbox::User=)
    mkdir -p "$1/lists/partial"
    apt-get "${private[@]}" -o "Dir::Cache=$1" update >/dev/null 2>&1 || true
    mirrors=$(list_mirrors "${private[@]}")
  fi
  printf '%s\n' "$mirrors"
}

# fetch_source MIRROR SUITE DIRECTORY: downloads the source package of fuse3, checked against Debian's keys. The
# machine's own apt state is neither read nor changed, apart from its settings (a proxy, for one).
fetch_source() {
  local mirror=$1 suite=$2 directory=$3 apt version
  mkdir -p "$directory"/{sources.d,state/lists/partial,cache/archives/partial,source}
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" "$suite" \
    >"$directory/sources.list"
  cat >"$directory/apt.conf" <<EOF
Dir::Etc::SourceList "$directory/sources.list";
Dir::Etc::SourceParts "$directory/sources.d";
Dir::State "$directory/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$directory/cache";
APT::Sandbox::User "";
Acquire::Retries "2";
# A mirror frozen at some date serves signed lists past their expiry.
Acquire::Check-Valid-Until "false";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
EOF
  apt=(apt-get -qq -c "$directory/apt.conf")
  "${apt[@]}" update >"$directory/log" 2>&1 || return 1
  version=$(apt-cache -c "$directory/apt.conf" showsrc --only-source fuse3 2>>"$directory/log" |
    sed -n 's/^Version: //p' | sort -V | tail -n 1)
  [ -n "$version" ] && version_at_least "$version" "$min_libfuse" || return 1
  (cd "$directory/source" && "${apt[@]}" source --download-only "fuse3=$version") >>"$directory/log" 2>&1
}

# build_source DIRECTORY: unpacks, compiles and prints the staged prefix. Configured for /usr, so that the library looks
# for the distribution's setuid fusermount3 in /usr/bin; its files are moved elsewhere afterwards.
build_source() {
  local directory=$1
  (
    PATH=/usr/bin:/bin:$PATH # meson and its installed data must be of one version: prefer the package's
    cd "$directory"
    dpkg-source --no-check -x source/*.dsc unpacked
    meson setup compiled unpacked --prefix=/usr --libdir=lib --buildtype=debugoptimized -Ddefault_library=static \
      -Dutils=false -Dexamples=false -Dtests=false -Duseroot=false -Dpkgconfig.relocatable=true
    meson compile -C compiled
    DESTDIR=$directory/staged meson install -C compiled --no-rebuild
  ) >>"$directory/log" 2>&1
}

# build_libfuse: fetches, builds and installs into the cache. Fails (with the reason on stderr) when it cannot be had.
build_libfuse() {
  local work mirrors mirror suite version target
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # the path is to be expanded now
  trap "rm -rf '$work'" EXIT
  mapfile -t mirrors < <(debian_mirrors "$work/machine")
  for suite in "${source_suites[@]}"; do
    for mirror in "${mirrors[@]}"; do
      if fetch_source "$mirror" "$suite" "$work/$suite"; then
        break 2
      fi
    done
  done
  if ! compgen -G "$work/$suite/source/*.dsc" >/dev/null; then
    say "no source package of libfuse >= $min_libfuse on this machine's Debian mirrors" >&2
    return 1
  fi
  if ! build_source "$work/$suite"; then
    say "building libfuse failed:" >&2
    tail -n 15 "$work/$suite/log" >&2
    return 1
  fi
  version=$(libfuse_version "$work/$suite/staged/usr")
  target=$(cache_directory)/libfuse-$version-$(system_tag)
  mkdir -p "$(cache_directory)"
  # A rename, so that a second installer at work meanwhile never sees half of it.
  chmod 755 "$work/$suite/staged/usr"
  rm -rf "$target.new.$$"
  cp -r "$work/$suite/staged/usr" "$target.new.$$"
  mv -T "$target.new.$$" "$target" 2>/dev/null || rm -rf "$target.new.$$"
  [ -f "$target/lib/libfuse3.a" ]
}

# What CMake will choose: the newer of the system's and the one built before, if that may be used.
ensure_libfuse() {
  local system built='' prefix='' wanted=$min_libfuse
  system=$(pkg-config --modversion fuse3)
  if [ "$libfuse" = newest ]; then
    wanted=$best_libfuse
  fi
  use_built() {
    prefix=$(built_libfuse)
    [ -z "$prefix" ] || built=$(libfuse_version "$prefix")
  }
  use_built
  if [ "$libfuse" != system ] && ! version_at_least "$system" "$wanted" && ! version_at_least "${built:-0}" "$wanted"; then
    say "libfuse $system of the system is older than $wanted; building a newer one from Debian's source package"
    install_packages "${libfuse_packages[@]}"
    (build_libfuse) || true
    use_built
  fi
  if [ -n "$built" ] && ! version_at_least "$system" "$built"; then
    install_packages libnuma-dev # the archive refers to it
    say "libfuse $built, static, in $prefix$(what_is_lost "$built")"
  else
    say "libfuse $system of the system$(what_is_lost "$system")"
  fi
}

what_is_lost() {
  if ! version_at_least "$1" "$min_libfuse"; then
    printf ': without passthrough reads and FUSE over io_uring (both need a newer libfuse)'
  elif ! version_at_least "$1" "$best_libfuse"; then
    printf ': without FUSE over io_uring (needs %s)' "$best_libfuse"
  fi
}

# --------------------------------------------------------------------------------------------------------------------

command -v apt-get >/dev/null 2>&1 || die "no apt-get here. Install by your own means: ${packages[*]}"
install_packages "${packages[@]}"
# Not so in a shell of root's that remembers who called sudo, with the repository where only root can read it.
if [ "$(id -u)" -eq 0 ] && [ -n "${SUDO_USER-}" ] && [ "$SUDO_USER" != root ] && sudo -H -u "$SUDO_USER" -- test -x "$0"; then
  # Run as `sudo install-deps.sh`: the library belongs into the cache of the user who will build.
  if [ "$libfuse" != system ]; then
    install_packages "${libfuse_packages[@]}"
  fi
  exec sudo -H -u "$SUDO_USER" -- "$0" --libfuse "$libfuse"
fi
ensure_libfuse

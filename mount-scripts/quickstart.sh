#!/usr/bin/env bash
# From a fresh Debian 12 or 13 to chunks stored, read back and still there after a remount. Can be run again.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly chunks=64 mebibyte=1048576

usage() {
  cat <<'EOF'
Usage: mount-scripts/quickstart.sh [DIRECTORY]

Installs what the build needs, builds the release preset, mounts a volume, stores 64 chunks of 256 tokens as LMCache's
GDS backend does, reads them back before and after a remount, and shows the stored files.
DIRECTORY (default ${XDG_DATA_HOME:-~/.local/share}/kvcachefs/quickstart) gets `volume`, which stays, and the mountpoint `mnt`.
It refuses to run where `volume` is one that quickstart did not make, or something else is mounted on `mnt`.
KVCACHEFS_BUILD_DIR names another build directory than build/release.
EOF
}

case ${1-} in
  -h | --help)
    usage
    exit 0
    ;;
  -*)
    usage >&2
    exit 2
    ;;
esac
base=$(realpath -m -- "${1:-${XDG_DATA_HOME:-$HOME/.local/share}/kvcachefs/quickstart}")
volume=$(realpath -m -- "$base/volume") # as the mount table will show it
readonly base volume mountpoint=$base/mnt chunk_directory=$base/mnt/kvcachefs-quickstart
readonly made_here=$base/.volume-made-by-quickstart
build=$(realpath -m -- "${KVCACHEFS_BUILD_DIR:-$repo/build/release}")
kvcachefs=$build/bin/kvcachefs

started=$SECONDS
heading() { printf '\n--- %s\n' "$*"; }
# Prints a command as the reader would type it, and runs it.
show() {
  printf '$%s\n' "$(printf ' %q' "$@")"
  "$@"
}
die() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 1
}

# Prints type and source of what is mounted on the mountpoint, or nothing. Read from the kernel's table, because the
# mount of a daemon that died cannot be looked at.
mounted_there() {
  local line fields point found=
  while IFS= read -r line; do
    read -ra fields <<<"$line"
    printf -v point '%b' "${fields[4]}"
    if [ "$point" = "$mountpoint" ]; then # of several the last one is on top
      read -ra fields <<<"${line#* - }"
      printf -v found '%s %b' "${fields[0]}" "${fields[1]}"
    fi
  done </proc/self/mountinfo
  printf '%s' "$found"
}

clean_up() {
  if [ "$(mounted_there)" = "fuse.kvcachefs $volume" ]; then
    "$kvcachefs" umount "$mountpoint" || umount -l "$mountpoint" || fusermount3 -u -z "$mountpoint" || true
  fi
}

# What is somebody else's is neither written to nor unmounted.
check_directory() {
  local mounted
  mounted=$(mounted_there)
  case $mounted in
    '' | "fuse.kvcachefs $volume") ;;
    *) die "$mountpoint has something else mounted on it ($mounted): unmount it, or name another DIRECTORY" ;;
  esac
  # The default directory is quickstart's own.
  if [ -z "${1-}" ] || [ -e "$made_here" ] || [ -z "$(ls -A "$volume" 2>/dev/null)" ]; then
    return
  fi
  die "$volume is there and quickstart did not make it: name another DIRECTORY"
}

check_directory "$@"

heading "install what the build needs"
env -u SUDO_USER "$repo/mount-scripts/install-deps.sh" # for the user who builds here

heading "build"
(cd "$repo" && cmake --preset release -B "$build" >/dev/null && cmake --build "$build" --target kvcachefs)
show "$kvcachefs" --version

[ -c /dev/fuse ] || die "there is no /dev/fuse here: load the fuse module, or give the container --device /dev/fuse and CAP_SYS_ADMIN"
check_directory "$@" # again: the build took its time
mkdir -p "$volume"
touch "$made_here"
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
clean_up # of a run that was killed
mkdir -p "$mountpoint"

heading "mount"
show "$kvcachefs" mount "$volume" "$mountpoint"
rm -rf "$chunk_directory" # what an earlier run stored

heading "store a prefix of $chunks chunks of 256 tokens, each with its sidecar, and read it back in another process"
show python3 -B "$repo/mount-scripts/quickstart_chunks.py" store "$chunk_directory" --chunks "$chunks"
show python3 -B "$repo/mount-scripts/quickstart_chunks.py" load "$chunk_directory" --chunks "$chunks"

heading "what an application sees"
first=$(find "$chunk_directory" -name '*.safetensors' | sort | sed -n 1p)
show ls -l "$(dirname "$first")"
show stat "$first"
show df -h "$mountpoint"

heading "where the chunk lies"
show setfattr -n user.kvcachefs.flush -v 1 "$mountpoint/.kvcachefs" # wait until all is on the volume
show getfattr --absolute-names -d -m user.kvcachefs "$first"
show "$kvcachefs" status "$mountpoint"
files=$(find "$chunk_directory" -type f | wc -l)
extents=$(find "$volume" -path '*/extents/*' -type f | wc -l)
bytes=$(du -s --block-size=1 "$volume" | cut -f 1)
printf '\n%d files in the mount, %d extents on the volume, which takes %d MiB in all:\n' "$files" "$extents" \
  $((bytes / mebibyte))
find "$volume" -path '*/extents/*' -type f -printf '%10s  %P\n'

heading "unmount, mount again, read again"
show "$kvcachefs" umount "$mountpoint"
show "$kvcachefs" mount "$volume" "$mountpoint"
show python3 -B "$repo/mount-scripts/quickstart_chunks.py" load "$chunk_directory" --chunks "$chunks"
show "$kvcachefs" umount "$mountpoint"
rmdir "$mountpoint"

heading "done in $((SECONDS - started)) s"
cat <<EOF
The chunks are in $volume; mount it again with
  $kvcachefs mount $volume MOUNTPOINT
For LMCache, point the GDS backend at a directory of the mount. use_gds is false because cuFile has no direct path
through FUSE; the buffer is in MiB.
  # lmcache.yaml
  chunk_size: 256
  local_cpu: false
  gds_path: "MOUNTPOINT/lmcache"
  gds_buffer_size: 8192
  use_gds: false
and start the engine with it:
  LMCACHE_CONFIG_FILE=lmcache.yaml vllm serve MODEL \\
    --kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
To mount it at boot: cmake --install $build, then /etc/fstab or kvcachefs@.service (mount-scripts/README.md, "At boot").
EOF

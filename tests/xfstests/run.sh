#!/usr/bin/env bash
# Runs xfstests (and pjdfstest) on fresh mounts of kvcachefs; README.md beside this says how they are built. Root only.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
repo=$(dirname "$(dirname "$here")")

usage() {
  cat <<'TEXT'
Usage: tests/xfstests/run.sh [OPTION...] XFSTESTS [ARGUMENT of `check`...]
       tests/xfstests/run.sh [OPTION...] --pjdfstest PJDFSTEST [TEST...]

XFSTESTS and PJDFSTEST are directories where those suites were built. Without arguments: -g quick of the generic tests.
A failure of xfstests that expected-failures.txt explains does not count; one that it does not explain ends in exit status 1.
  --bin FILE      the kvcachefs command (default: $KVCACHEFS_BIN, else build/release/bin/kvcachefs)
  --options LIST  mount options besides allow_other,suid,dev,log_level=warn, and memory=4G unless LIST has another
  --keep          leave the directory with volumes, logs and results, and print its name
TEXT
}
die() {
  printf 'xfstests/run.sh: %s\n' "$*" >&2
  exit 2
}

bin=${KVCACHEFS_BIN:-$repo/build/release/bin/kvcachefs} more_options= keep=no suite=xfstests
while [ $# -gt 0 ]; do
  case $1 in
    --bin | --options)
      [ $# -ge 2 ] || die "$1 needs a value"
      [ "$1" = --bin ] && bin=$2 || more_options=$2
      shift
      ;;
    --keep) keep=yes ;;
    --pjdfstest) suite=pjdfstest ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*) die "unknown option '$1'; --help lists them" ;;
    *) break ;;
  esac
  shift
done
[ $# -ge 1 ] || die "which directory? --help says"
tree=$(realpath -e -- "$1") || die "$1 is not there"
shift
[ -x "$bin" ] || die "$bin is not there: build it, or name it by --bin"
bin=$(realpath -e -- "$bin")
[ "$(id -u)" = 0 ] || die "it needs root"
options=allow_other,suid,dev,log_level=warn${more_options:+,$more_options}
[[ ,$options, == *,memory=* ]] || options+=,memory=4G

# mount(8) looks for its helper in /sbin only, and both suites mount and unmount: in a mount namespace of its own, which also
# takes all mounts down when the last of its processes ends.
if [ -z "${KVCACHEFS_XFSTESTS_WORK:-}" ]; then
  work=$(mktemp -d "${TMPDIR:-/var/tmp}/kvcachefs-xfstests.XXXXXX")
  chmod 755 "$work"
  status=0
  KVCACHEFS_XFSTESTS_WORK=$work unshare --mount -- "${BASH_SOURCE[0]}" --bin "$bin" ${more_options:+--options "$more_options"} \
    $([ "$suite" = xfstests ] || echo --pjdfstest) "$tree" "$@" || status=$?
  if [ "$keep" = yes ]; then echo "kept: $work"; else rm -rf --one-file-system "$work"; fi
  exit "$status"
fi
work=$KVCACHEFS_XFSTESTS_WORK
mkdir -p "$work"/{prefix/bin,prefix/sbin,sbin,volume,mnt,scratch-volume,scratch,results,tmp}
chmod 1777 "$work/tmp"
ln -s "$bin" "$work/prefix/bin/kvcachefs"
cp "$repo/mount-scripts/mount.fuse.kvcachefs" "$work/prefix/sbin/"
ln -s "$work/prefix/sbin/mount.fuse.kvcachefs" "$work/sbin/"
mount -t overlay none -o "lowerdir=$work/sbin:/usr/sbin" /usr/sbin
export PATH="$work/prefix/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The daemons live in this namespace and would keep it, and themselves, if a run was interrupted.
unmount_all() {
  for mountpoint in "$work/mnt" "$work/scratch"; do
    if mountpoint -q "$mountpoint"; then kvcachefs umount --quiet --lazy "$mountpoint" || true; fi
  done
}
trap unmount_all EXIT
trap 'exit 143' TERM INT HUP

if [ "$suite" = pjdfstest ]; then
  mount -t fuse.kvcachefs "$work/volume" "$work/mnt" -o "$options"
  status=0
  cd "$work/mnt"
  if [ $# -eq 0 ]; then set -- "$tree/tests"; fi
  prove -r "$@" || status=$?
  cd /
  exit "$status"
fi

# xfstests compares the type that df prints with FSTYP, which has no subtype; and it unmounts by the device, which umount(8)
# takes for a mountpoint where it is a directory.
cat >"$work/prefix/bin/df" <<TEXT
#!/bin/bash
set -o pipefail
$(type -P df) "\$@" | sed 's/ fuse\.kvcachefs / fuse /'
TEXT
cat >"$work/prefix/bin/umount" <<TEXT
#!/bin/bash
arguments=()
for argument; do
  case \$argument in
    "$work/volume") argument="$work/mnt" ;;
    "$work/scratch-volume") argument="$work/scratch" ;;
  esac
  arguments+=("\$argument")
done
exec $(type -P umount) "\${arguments[@]}"
TEXT
chmod +x "$work"/prefix/bin/{df,umount}
for user in fsgqa fsgqa2 123456-fsgqa; do
  getent passwd "$user" >/dev/null || die "xfstests wants a user $user: useradd -m $user"
done
cat >"$work/local.config" <<TEXT
export FSTYP=fuse
export FUSE_SUBTYP=.kvcachefs
export TEST_DEV=$work/volume
export TEST_DIR=$work/mnt
export SCRATCH_DEV=$work/scratch-volume
export SCRATCH_MNT=$work/scratch
export MOUNT_OPTIONS="-o $options"
export TEST_FS_MOUNT_OPTS="-o $options"
export RESULT_BASE=$work/results
TEXT
[ $# -gt 0 ] || set -- -g quick
cd "$tree"
HOST_OPTIONS=$work/local.config ./check -fuse "$@" 2>&1 | tee "$work/check.log" || true
# Which of the failures are explained.
failed=$(sed -n 's/^Failures: *//p' "$work/check.log" | tail -n 1)
ran=$(sed -n 's/^Ran: *//p' "$work/check.log" | tail -n 1 | wc -w)
not_run=$(sed -n 's/^Not run: *//p' "$work/check.log" | tail -n 1 | wc -w)
new=
for test in $failed; do
  grep -q "^$test " "$here/expected-failures.txt" || new="$new $test"
done
echo "$((ran - not_run)) ran, $not_run do not apply, $(wc -w <<<"$failed") failed, of which not explained:${new:- none}"
[ -z "$new" ] && [ "$ran" -gt 0 ]

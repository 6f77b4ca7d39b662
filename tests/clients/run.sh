#!/usr/bin/env bash
# Runs the real KV-cache clients against kvcachefs (or, to compare, against a plain directory). See README.md.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mount_options=${CLIENTS_MOUNT_OPTIONS:-memory=1G}
time_limit_s=${CLIENTS_TIMEOUT_S:-1200}
torch_index=https://download.pytorch.org/whl/cpu
# Nothing here needs a GPU, and these are gigabytes.
forbidden='^(triton|cupy|cuda[-_]|nvidia[-_]|pytorch[-_]triton)'

usage() {
  cat <<USAGE
usage: KVCACHEFS_BIN=.../kvcachefs $0 [PYTEST ARGUMENT...]
       $0 --dir DIRECTORY [PYTEST ARGUMENT...]
       $0 --install-only

With KVCACHEFS_BIN the tests run on a fresh mount of a fresh volume under \${TMPDIR:-/tmp}; otherwise on the existing
plain DIRECTORY, where the cases that need more than a plain directory may fail. A skipped test fails the run.
USAGE
}

plain_dir=
install_only=
while [[ $# -gt 0 ]]; do
  case $1 in
    --dir)
      [[ $# -ge 2 ]] || { usage >&2; exit 2; }
      plain_dir=$2
      shift 2
      ;;
    --install-only) install_only=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) break ;;
  esac
done
if [[ -z $install_only && -z ${KVCACHEFS_BIN:-} && -z $plain_dir ]]; then
  usage >&2
  exit 2
fi
if [[ -z ${KVCACHEFS_BIN:-} && -n $plain_dir && ! -d $plain_dir ]]; then
  echo "$0: --dir $plain_dir: no such directory" >&2
  exit 2
fi

root=
plain_made=
tests_pid=

mount_line() { awk -v at="$1" '$5 == at { print $3 }' /proc/self/mountinfo; }
mounts_below() { awk -v root="$1/" 'index($5, root) == 1 { print $5 }' /proc/self/mountinfo | sort -r; }

# unmount MOUNTPOINT: never leaves it behind: a daemon that does not answer any more is cut off through its FUSE connection.
unmount() {
  timeout 120 "$KVCACHEFS_BIN" umount "$1" >>"$root/mount.log" 2>&1 || true
  local device
  device=$(mount_line "$1")
  [[ -n $device ]] || return 0
  echo "$0: '$KVCACHEFS_BIN umount' left $1 mounted; cutting it off" >&2
  cat "$root/mount.log" >&2
  local abort=/sys/fs/fuse/connections/${device#*:}/abort
  [[ ! -w $abort ]] || echo 1 >"$abort"
  [[ $EUID -ne 0 ]] || umount -i -f "$1" 2>/dev/null || true  # ends the connection too
  [[ -n $(mount_line "$1") ]] || return 1
  fusermount3 -u -z "$1" 2>/dev/null || umount -l "$1"
  return 1
}

cleanup() {
  local status=$?
  trap - EXIT INT TERM HUP
  if [[ -n $tests_pid ]]; then
    kill -TERM "$tests_pid" 2>/dev/null || true
    wait "$tests_pid" 2>/dev/null || true
  fi
  local each
  if [[ -n $root && -n ${KVCACHEFS_BIN:-} ]]; then
    for each in $(mounts_below "$root"); do  # also what the tests mounted
      unmount "$each" || { [[ $status -ne 0 ]] || status=1; }
    done
  fi
  [[ -z $plain_made ]] || rm -rf --one-file-system "$plain_made"
  [[ -z $root ]] || rm -rf --one-file-system "$root"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The environment is named by what is in it, and complete when its marker is there.
prepare_environment() {
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvcachefs
  local hash
  hash=$({ cat "$here/requirements-torch.txt" "$here/requirements.txt"; python3 -VV; } | sha256sum | cut -c1-12)
  venv=$cache/clients-venv-$hash
  mkdir -p "$cache"
  exec 9>"$venv.lock"
  flock 9
  if [[ ! -e $venv/complete ]]; then
    echo "$0: installing the clients into $venv (about 2 GB on disk; once)" >&2
    rm -rf "$venv"
    python3 -m venv "$venv"
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps)
    "${pip[@]}" -r "$here/requirements-torch.txt" 2>/dev/null ||
      "${pip[@]}" --extra-index-url "$torch_index" -r "$here/requirements-torch.txt"
    "${pip[@]}" -r "$here/requirements.txt"
    local unwanted
    unwanted=$("$venv/bin/python" -m pip --disable-pip-version-check list --format=freeze |
      grep -iE "$forbidden" || true)
    if [[ -n $unwanted ]]; then
      echo "$0: GPU packages came in, which none of the tests needs: $unwanted" >&2
      exit 1
    fi
    touch "$venv/complete"
  fi
  flock -u 9
  exec 9>&-
}

prepare_environment
[[ -z $install_only ]] || exit 0

root=$(mktemp -d "${TMPDIR:-/tmp}/kvcachefs-clients.XXXXXX")
root=$(cd "$root" && pwd -P)
if [[ -n ${KVCACHEFS_BIN:-} ]]; then
  KVCACHEFS_BIN=$(realpath "$KVCACHEFS_BIN")
  export KVCACHEFS_BIN
  export CLIENTS_VOLUME=$root/volume CLIENTS_DIR=$root/mnt CLIENTS_MOUNT_OPTIONS=$mount_options
  mkdir "$CLIENTS_VOLUME" "$CLIENTS_DIR"
  # The daemon keeps what it inherits: not this script's output, on which a caller may wait.
  if ! "$KVCACHEFS_BIN" mount "$CLIENTS_VOLUME" "$CLIENTS_DIR" -o "$mount_options" \
      </dev/null >"$root/mount.log" 2>&1; then
    echo "$0: '$KVCACHEFS_BIN mount $CLIENTS_VOLUME $CLIENTS_DIR -o $mount_options' failed:" >&2
    cat "$root/mount.log" >&2
    exit 1
  fi
else
  plain_made=$(mktemp -d "$(cd "$plain_dir" && pwd -P)/kvcachefs-clients.XXXXXX")
  export CLIENTS_DIR=$plain_made
fi

export PYTHONDONTWRITEBYTECODE=1
timeout --kill-after=20 "$time_limit_s" "$venv/bin/python" -m pytest -c "$here/pytest.ini" --rootdir "$here" \
  --basetemp "$root/pytest" "$here" "$@" &
tests_pid=$!
status=0
wait "$tests_pid" || status=$?
tests_pid=
exit "$status"

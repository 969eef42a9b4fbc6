#!/usr/bin/env bash
# Start, stop and reach a team of agents: sets the folders of the mode and hands over to the mas command.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: ./mas_refactored.sh start [--config FILE] | stop | status | send TARGET TEXT | attach | list

  MAS_SESSION_MODE  legacy (also when unset): the shared unit/ and workflows/, one session
                    isolated: a session of its own under sessions/
  MAS_SESSION_ID    isolated: the session to make, start again or reach (a version 4 UUID)
  MAS_ROOT          where unit/, workflows/ and sessions/ are; the current folder when unset
TEXT
}

fail() {
    printf 'mas_refactored.sh: %s\n' "$1" >&2
    exit 2
}

# The mas command of this checkout, else the one on PATH.
run_mas() {
    local here
    here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
    if [[ -x $here/.venv/bin/python ]]; then
        exec "$here/.venv/bin/python" -m mas "$@"
    elif command -v mas >/dev/null; then
        exec mas "$@"
    fi
    exec python3 -m mas "$@"
}

# PROJECT_NAME of a .masrc, which is read and never run; the last one counts.
project_name() {
    local line value='' pattern='^[[:space:]]*(export[[:space:]]+)?PROJECT_NAME=(.*)$'
    while IFS= read -r line || [[ -n $line ]]; do
        [[ $line =~ $pattern ]] && value=${BASH_REMATCH[2]}
    done <"$1"
    value=${value%$'\r'}
    case $value in
        \"*) value=${value#\"} && value=${value%%\"*} ;;
        \'*) value=${value#\'} && value=${value%%\'*} ;;
        *) value=${value%%[[:space:]]*} ;;
    esac
    printf '%s' "$value"
}

# mas-<project> where a .masrc in MAS_ROOT or above names one, else mas-tmux.
legacy_name() {
    local folder=$MAS_ROOT name
    while :; do
        if [[ -r $folder/.masrc ]]; then
            name=$(project_name "$folder/.masrc")
            if [[ -n $name ]]; then
                printf 'mas-%s' "${name//[^A-Za-z0-9_-]/-}"
                return
            fi
        fi
        [[ $folder == / ]] && break
        folder=$(dirname -- "$folder")
    done
    printf 'mas-tmux'
}

new_id() {
    if [[ -r /proc/sys/kernel/random/uuid ]]; then
        cat /proc/sys/kernel/random/uuid
    else
        python3 -c 'import uuid; print(uuid.uuid4())'
    fi
}

set_directories() {
    case $MAS_SESSION_MODE in
        isolated)
            UNIT_DIR="$MAS_ROOT/sessions/$MAS_SESSION_ID/unit"
            WORKFLOWS_DIR="$MAS_ROOT/sessions/$MAS_SESSION_ID/workflows"
            SESSION_NAME="mas-${MAS_SESSION_ID:0:8}"
            ;;
        legacy)
            UNIT_DIR="$MAS_ROOT/unit"
            WORKFLOWS_DIR="$MAS_ROOT/workflows"
            SESSION_NAME=$(legacy_name)
            ;;
    esac
    export UNIT_DIR WORKFLOWS_DIR SESSION_NAME
}

main() {
    local command=${1:-} root=${MAS_ROOT:-.}
    [[ $# -gt 0 ]] && shift
    export MAS_SESSION_MODE=${MAS_SESSION_MODE:-legacy}
    MAS_ROOT=$(cd -- "$root" 2>/dev/null && pwd -P) || fail "MAS_ROOT is no folder: $root"
    export MAS_ROOT
    [[ $MAS_SESSION_MODE == legacy || $MAS_SESSION_MODE == isolated ]] ||
        fail "MAS_SESSION_MODE is '$MAS_SESSION_MODE': use legacy or isolated"

    if [[ $MAS_SESSION_MODE == isolated && $command == start ]]; then
        export MAS_SESSION_ID=${MAS_SESSION_ID:-$(new_id)}
    fi
    local -a which=()
    if [[ $MAS_SESSION_MODE == legacy || -n ${MAS_SESSION_ID:-} ]]; then
        set_directories
        which=(--tmux "$SESSION_NAME")
    fi

    case $command in
        start | list) run_mas "$command" "$@" ;;
        stop | attach | send) run_mas "$command" "${which[@]}" "$@" ;;
        status) run_mas show "${which[@]}" "$@" ;;
        help | -h | --help) usage ;;
        *)
            usage >&2
            exit 2
            ;;
    esac
}

main "$@"

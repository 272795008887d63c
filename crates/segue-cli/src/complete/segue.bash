# bash completion for segue: the program knows what may come next.
_segue() {
    local line
    local -a lines
    COMPREPLY=()
    mapfile -t lines < <("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${lines[0]-} == @files ]]; then
        compopt -o default 2>/dev/null
        return
    fi
    for line in "${lines[@]}"; do
        COMPREPLY+=("${line%%$'\t'*}")
    done
    # A prefix such as tap: is completed by a name behind it.
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *: ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _segue segue

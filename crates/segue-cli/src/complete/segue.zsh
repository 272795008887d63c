#compdef segue
# zsh completion for segue: the program knows what may come next.
_segue() {
    local line word about
    local -a lines found
    lines=("${(@f)$(${words[1]} complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ ${lines[1]-} == @files ]]; then
        _files
        return
    fi
    for line in $lines; do
        word=${line%%$'\t'*}
        about=${line#*$'\t'}
        found+=("${word//:/\\:}:$about")
    done
    _describe segue found
}
if [[ ${funcstack[1]} == _segue ]]; then
    _segue "$@"
else
    compdef _segue segue
fi

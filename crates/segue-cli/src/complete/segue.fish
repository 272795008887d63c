# fish completion for segue: the program knows what may come next.
function __segue_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l lines ($words[1] complete -- $words[2..-1] 2>/dev/null)
    if test "$lines[1]" = @files
        __fish_complete_path (commandline -ct)
        return
    end
    printf '%s\n' $lines
end
complete -c segue -f -a '(__segue_complete)'

# Completion for bash of farpage and farpaged. Commands and options are those that --help of the
# program lists, so that they are always its own. Only the words that options take are listed here.

# COMMAND...: the commands or verbs that it offers
_farpage_commands() {
	"$@" --help 2>/dev/null | sed -n 's/^  \([a-z]\{1,\}\) .*/\1/p'
}

# COMMAND...: its options
_farpage_options() {
	"$@" --help 2>/dev/null | sed -n 's/^  \(-[A-Za-z], \)\{0,1\}\(--[a-z-]*\).*/\2/p'
}

# OPTION COMMAND...: the name of the value that the option takes; nothing if it takes none
_farpage_value() {
	local option=$1
	[[ $option =~ ^--[a-z-]+$ ]] || return 0 # it becomes part of a program of sed
	shift
	"$@" --help 2>/dev/null | sed -n "s/^  $option \([A-Z]\{1,\}\) .*/\1/p"
}

# OPTION COMMAND...: the words that the option takes
_farpage_words() {
	case $1 in
	--affinity) echo auto off ;;
	--capture) echo auto move protect ;;
	--contender) echo plain thread inline zram loop ;;
	--core) echo local full ;;
	--fault-mode) [[ $3 == bench ]] && echo thread inline both || echo thread inline ;;
	--format) echo text json csv hgrm svg ;;
	--heap) echo all large none ;;
	--kind) echo all zero read write protect waited ;;
	--on-loss) echo sigbus wait ;;
	--op) echo read write rpc ;;
	--phase) echo fault fetch writeback evict ;;
	--protocol) echo auto inline eager registered ;;
	--run) echo quicksort kmeans graph hash stream columns ;;
	--transport) [[ $4 == apps ]] && echo shm tcp || echo floor bare-tcp shm tcp ;;
	--workload) echo quicksort kmeans graph hash stream columns python sort redis ;;
	esac
}

# Sets COMPREPLY to those of the words $2... that begin with $1.
_farpage_reply() {
	local current=$1
	shift
	mapfile -t COMPREPLY < <(compgen -W "$*" -- "$current")
}

# CURRENT OPTION COMMAND...: completes the value of an option
_farpage_complete_value() {
	local current=$1 value words
	shift
	value=$(_farpage_value "$@")
	words=$(_farpage_words "$@")
	if [[ -n $words ]]; then
		_farpage_reply "$current" "$words"
		return
	fi
	case $value in
	FILE) mapfile -t COMPREPLY < <(compgen -f -- "$current") && compopt -o filenames 2>/dev/null ;;
	PID) _farpage_reply "$current" "$("$2" ps 2>/dev/null | sed -n 's/^ *\([0-9]\{1,\}\) .*/\1/p')" ;;
	URL) _farpage_reply "$current" shm: tcp:// rdma:// rdma+tcp:// auto:// && compopt -o nospace 2>/dev/null ;;
	ADDRESS) _farpage_reply "$current" unix: tcp:// && compopt -o nospace 2>/dev/null ;;
	NAME) mapfile -t COMPREPLY < <(compgen -u -- "$current") ;;
	esac
}

# For readline, a colon ends a word. So the replies must not repeat what stands before the colon.
_farpage_trim_colons() {
	local before=${1%"${1##*:}"} i
	[[ $1 == *:* && $COMP_WORDBREAKS == *:* ]] || return 0
	for i in "${!COMPREPLY[@]}"; do
		COMPREPLY[i]=${COMPREPLY[i]#"$before"}
	done
}

# Completes the program that `farpage run` starts, whose first word is number $1.
_farpage_program() {
	if declare -F _command_offset >/dev/null; then
		_command_offset "$1"
	elif (($1 == COMP_CWORD)); then
		mapfile -t COMPREPLY < <(compgen -c -- "$2")
	else
		compopt -o default 2>/dev/null
	fi
}

_farpage() {
	local line=${COMP_LINE:0:COMP_POINT} words command i current previous
	read -ra words <<<"$line"
	[[ $line == *[[:space:]] ]] && words+=("")
	current=${words[-1]} previous=${words[-2]} command=("$1")
	for ((i = 1; i < ${#words[@]}; i++)); do
		[[ ${command[0]##*/} == farpaged || ${#command[@]} == 3 || ${command[1]} == @(run|hist|ps|top) ]] && break
		if ((i == ${#words[@]} - 1)) && [[ $current != -* ]]; then
			_farpage_reply "$current" "$(_farpage_commands "${command[@]}")"
			return
		fi
		[[ ${words[i]} != -* ]] || break
		command+=("${words[i]}")
	done
	for (( ; i < ${#words[@]} - 1; i++)); do
		[[ ${command[1]} == run ]] || break
		if [[ ${words[i]} == -- ]]; then
			i=$((i + 1))
		elif [[ ${words[i]} == -* ]]; then
			[[ -z $(_farpage_value "${words[i]}" "${command[@]}") ]] || i=$((i + 1))
			continue
		fi
		_farpage_program $((COMP_CWORD - (${#words[@]} - 1 - i))) "$current"
		return
	done
	if [[ $current == --*=* ]]; then
		_farpage_complete_value "${current#*=}" "${current%%=*}" "${command[@]}"
	elif [[ $previous == --* && -n $(_farpage_value "$previous" "${command[@]}") ]]; then
		_farpage_complete_value "$current" "$previous" "${command[@]}"
	elif [[ $current == -* ]]; then
		_farpage_reply "$current" "$(_farpage_options "${command[@]}")"
	elif [[ ${command[1]} == run ]]; then
		_farpage_program "$COMP_CWORD" "$current"
	elif [[ ${command[1]} == node || ${command[2]} == link ]]; then
		_farpage_reply "$current" shm: tcp:// rdma:// rdma+tcp:// auto:// && compopt -o nospace 2>/dev/null
	elif [[ ${command[1]} == hist ]]; then
		mapfile -t COMPREPLY < <(compgen -f -- "$current") && compopt -o filenames 2>/dev/null
	fi
	_farpage_trim_colons "$current"
}

complete -F _farpage farpage farpaged

#!/usr/bin/env bash
# Finds words that Lisa does not use, in docs, comments, help, errors and logs: one word per concept, and plain technical
# English. shared/docs/reference/glossary.md has the word for each concept.
set -euo pipefail
cd "$(dirname "$0")/.."
# Without git, or without its trust in the owner of this folder, nothing would be read.
git ls-files >/dev/null

# pattern (extended, whole words) :: say this instead
words() {
    cat <<'LIST'
dead record :: garbage_info
give[sn]? up :: moved to garbage, timed out, retired, stops: say which
gave up :: moved to garbage, timed out, retired, stopped: say which
notices? of garbage :: garbage hook
lanes? :: parked (messages), SendBatcher (sends)
full class :: general class
hands? over :: migrate
handed over :: migrated
heirs? :: successor
horizons? :: low watermark
vacat(e|es|ed|ing) :: drop the keys of
mend(s|ed|ing)? :: repair
told :: reports, says
trying on :: retrying
anew :: again
[Ww]hoever :: say who
as ever :: as before
be it that :: even if
dearer :: costs more
takes back :: reclaims
for people :: say for whom
for programs :: say for whom
is away :: is unavailable
are away :: are unavailable
LIST
}

files() {
    git ls-files --cached --others --exclude-standard -- '*.md' '*.rs' '*.lua' '*.sh' config Makefile .ci/run \
        ':!tests/words.sh' |
        while IFS= read -r file; do
            [[ ! -f $file ]] || printf '%s\n' "$file"
        done
}

# Prints each line with a word, an extended pattern. Tests may use it as the name of a value, so only their comments count.
search() {
    files | grep -v '^tests/.*\.rs$' | xargs grep -nwE -- "$1" || true
    files | grep '^tests/.*\.rs$' | xargs grep -nE -- "//(.*[^[:alnum:]_])?($1)([^[:alnum:]_]|$)" || true
}

bad=0
while IFS= read -r row; do
    word=${row%% :: *} instead=${row##* :: }
    found=$(search "$word")
    if [[ -n $found ]]; then
        bad=1
        while IFS= read -r line; do
            printf '%s\n    write: %s\n' "$line" "$instead"
        done <<<"$found"
    fi
done < <(words)

# A doc comment begins with a verb in the third person or with a noun.
if found=$(files | grep '\.rs$' | xargs grep -nE -- '^\s*//[/!] (What|Who|Whose|Whether|How|Where|Why|Which|Gives|Tells) '); then
    bad=1
    printf '%s\n    begin with a verb ("Returns …") or a noun\n' "$found"
fi
exit "$bad"

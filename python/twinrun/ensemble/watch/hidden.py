"""What of a text is shown: a text without the secrets in it."""

from __future__ import annotations

import re

__all__ = ["either", "without_secrets"]

_URL = re.compile(
    r"""
    (?P<begin> (?<![a-z0-9+.-]) (?!file:) [a-z][a-z0-9+.-]*:// )
    (?: [^\s/?#'"]*@ | [^\s/?#\[\]:@]*: (?!\d*(?:[/?#\s]|$)) \S*@ )?
    (?P<rest> [^\s?#'"]* )
    (?: [?#] [^\s'"]* )?
    """,
    re.IGNORECASE | re.VERBOSE,
)

_HOST = re.compile(r"""(?:^|(?<=[\s"'=]))//[^\s/?#'"]*@""")
# What services give out as tokens. The group is what is shown of one.
_TOKEN = re.compile(
    r"""
    (?<![\w-])
    (?: (?i: (gh[opusr]_|github_pat_|glpat-|hf_|sk-|akia|xox[bp]-|nvapi-) (?=[a-z_-]*\d) [\w-]{16}
           | ([sr]k_(?:live|test)_) [a-z0-9]{16} | (npm_) [a-z0-9]{30} | (ya29\.|hvs\.) [\w-]{20} )
      | (A[KS]IA) [A-Z0-9]{16} | (AIza) [\w-]{30} | (SG\.) (?=[\w-]+\.) [\w.-]{20,}
      | (eyJ) (?=[\w-]+\.eyJ[\w-]+\.) [\w.-]+  # a JWT
      | (Basic[ ]) (?=[a-zA-Z/=]*[0-9+]|[a-zA-Z0-9+/=]*[a-z][A-Z]) [a-zA-Z0-9+/=]{8,} )
    [\w-]*
    """,
    re.ASCII | re.VERBOSE,
)
# Names of secrets beside those of the rules: within a longer name, and as words of their own.
_WITHIN = r"(?:access|account|api|private|secret)[-_ ]?key|secret[-_]?id|passcode"
_OWN = """pwd bearer sig signature cookie cookies pswd psk otp sessionid sessid jsessionid
    phpsessid""".split()
# Names of secrets end so, as "DBPASS" and "mypwd" do; a few end so behind these words alone.
_ENDS = ["pass", "pwd"]
_ENDS_BEHIND = {
    # Many ordinary words end in "key": "hotkey", "turkey".
    "key": """auth license master consumer shared ssh app client server rsa dsa crypt pass session signing
        signature encryption""".split(),
    "pw": "bind root db user admin my ldap sudo bot".split(),
}
# These words are ordinary.
_ORDINARY = """allpass bandpass bypass compass encompass highpass lowpass multipass overpass prepass renderpass
    singlepass subpass surpass trespass""".split()
# Variables in which shells keep a folder: PWD=/home is no password.
_FOLDER_OF_SHELL = re.compile(r"""(?:\A|(?<=[\s"']))(?:OLD)?PWD=["']?/""")
_KIND_OF_CREDENTIALS = r"(?:(?:bearer|basic)\s+)?"
_OPTION = r"--?[a-z][a-z_.-]{0,24}"
_END_OF_NAME = re.compile(r"(?:\d{0,2}[a-z_.-]{1,24}){0,4}\d{0,2}", re.IGNORECASE)
_NO_VALUE = re.compile(
    r"""\\*["']?(?:[\s"'`)\]}>.,;:=]*\Z|\s+(?=(?:--[a-z][a-z_.-]{0,24}|-[a-z])(?:[\s=]|\Z)))""", re.IGNORECASE
)
_BEFORE_VALUE = re.compile(rf"""\\*["']?(?:\s*[=:]\s*|\s+){_KIND_OF_CREDENTIALS}""", re.IGNORECASE)
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])+""", re.DOTALL)
_OPTIONS = re.compile(rf"""["']?(?:\s+{_OPTION}(?:(?:=|\s+)\d{{1,9}})?)*\s*""", re.IGNORECASE)
_COUNT = re.compile(
    r"tokens|keys?|(?:token|key|sig|pass)s?[-_]?(?:count|figs?|dim|size|len(?:gth)?|limit|per[-_][a-z_]+)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,9}(?![\w.])")
_KEY_OF_DATA = re.compile(r"(?:\A|[\s\"'])-{0,2}(?:(?:sort|primary|partition|group)[-_])?\Z", re.IGNORECASE)
_NUMBERED_SIGN = re.compile(r"%([0-9a-f]{2})|\\u00([0-9a-f]{2})", re.IGNORECASE)
_OF_A_SHELL = re.compile(r"[\"']|\\\n|\\(?=[a-z])", re.IGNORECASE)
_TEXTS_WITHIN_TEXTS = 3
_LONGEST_PATH = 1024
_FOLDERS_GO_ON = re.compile(r"[\w.+-]*(?:/|\Z)")
_FOLDER_GOES_ON = re.compile(r"[\w.+-]*(?:/|:/|:?\Z)")


def either(words: list[str]) -> str:
    """An expression that is one of the words."""
    return "|".join(map(re.escape, words))


def _names_of_secrets(rules: dict[str, list[str]]) -> re.Pattern:
    """What finds the names: "token" is within a longer word too, "pass" is a word of its own."""
    own = sorted({w.lower() for w in [*rules["secret_variable_words"], *_OWN]}, key=len, reverse=True)
    begins = either([w.capitalize() for w in own])  # as in AccountKey
    # Behind an end of a word: not where all of the word is an ordinary one. A word begins with a
    # letter, or with a capital behind a small one ("useBypass").
    ordinary = "".join(
        rf"(?<!\A(?:{w}|{W}|{C}))(?<![^A-Za-z](?:{w}|{W}|{C}))(?<![a-z](?:{W}|{C}))"
        for w, W, C in ((w, w.upper(), w.capitalize()) for w in _ORDINARY)
    )
    behind = "|".join(
        rf"(?:{'|'.join(f'(?<={word})' for word in words)}){end}" for end, words in _ENDS_BEHIND.items()
    )
    # "GH_PAT" is a personal access token: in small letters it may be a pattern or a patch.
    return re.compile(
        rf"(?i:{either(rules['secret_words'])}|{_WITHIN})(?!(?i:(?<=token)i[sz]|(?<=secret)ar))"
        rf"|(?:(?<![A-Za-z])|(?<=-D))(?i:{either(own)})(?![A-Za-z])"
        rf"|(?<=[A-Za-z])(?:{begins})(?![a-z])"
        rf"|(?<![A-Za-z])(?:{either(own)})(?=[A-Z])"
        rf"|(?<=_)PAT(?![A-Za-z])"
        rf"|(?<=[A-Za-z])(?i:{either(_ENDS)})(?![A-Za-z]){ordinary}"
        rf"|(?i:{behind})(?![A-Za-z])"
    )


def _is_folder(text: str, begin: int, end: int) -> bool:
    """Whether a name is a part of a path that begins at the root or here; not of a URL's."""
    before = re.split(r"[\s\"'=,:]", text[max(0, begin - _LONGEST_PATH) : begin])[-1]
    if not re.match(r"(?:\.{0,2}|~|\{folder\})/(?!/)", before):
        return False
    # "/token:/x" may be an option and its value.
    goes_on = _FOLDER_GOES_ON if before.count("/") > 1 else _FOLDERS_GO_ON
    return goes_on.match(text, end) is not None


def _is_folder_of_shell(text: str, end: int) -> bool:
    """Whether a name is that of a variable in which shells keep a folder, and has one."""
    begin = end - (6 if text[:end].endswith("OLDPWD") else 3)
    return _FOLDER_OF_SHELL.match(text, max(0, begin)) is not None


def _decoded(text: str, names: re.Pattern) -> str:
    """A text behind the signs that programs write for others, if these hide a name or a URL."""

    def finds_more(other: str) -> bool:
        more_urls = other.count("://") > text.count("://")
        return more_urls or len(names.findall(other)) > len(names.findall(text))

    plain = text
    for _ in range(_TEXTS_WITHIN_TEXTS):
        before = plain
        plain = _NUMBERED_SIGN.sub(lambda found: chr(int(found[1] or found[2], 16)), plain)
        if plain == before:
            break
        if finds_more(plain):
            text = plain
    # As a shell reads it: "tok""en" is one word.
    joined = _OF_A_SHELL.sub("", text)
    return joined if finds_more(joined) else text


def without_secrets(value: str, rules: dict[str, list[str]]) -> str:
    """The value of a variable, or a command, without secrets.

    From the first name of a secret on, the rest is hidden. Numbers of things, paths, and options
    with numbers behind the secret stay. src/core/history/named_secrets.hpp does the same.
    """
    names = _names_of_secrets(rules)
    text = _URL.sub(lambda found: found["begin"] + found["rest"], _decoded(value, names))
    text = _TOKEN.sub(lambda found: found[found.lastindex or 0] + "...", _HOST.sub("//", text))
    shown, at = "", 0  # what is shown, of the text before `at`
    for found in names.finditer(text):
        begin, end = found.span()
        if begin < at or _is_folder(text, begin, end) or _is_folder_of_shell(text, end):
            continue
        own = _END_OF_NAME.match(text, end)
        assert own is not None
        end = own.end()
        if _NO_VALUE.match(text, end):
            continue
        before = _BEFORE_VALUE.match(text, end)
        if before is not None:
            if _COUNT.fullmatch(text, begin, end) and _NUMBER.match(text, before.end()):
                continue
            if found[0].lower() in ("key", "keys") and re.compile(r"\s+[a-z_]{1,12}(?:\s|\Z)").match(
                text, end
            ):
                if _KEY_OF_DATA.search(text[max(0, begin - 16) : begin]):
                    continue
        if shown and not _OPTIONS.fullmatch(text, at, end):
            return shown
        word = _WORD.match(text, before.end()) if before is not None else None
        if before is None or word is None:
            return shown + text[at : before.end() if before is not None else found.end()] + "..."
        shown += text[at : before.end()] + "..."
        at = word.end()
    return shown + text[at:] if not shown or _OPTIONS.fullmatch(text, at) else shown

// Secrets that stand behind the name of one, in whatever way a shell, JSON or a protocol writes
// them.
//
// python/twinrun/ensemble/watch/hidden.py does the same for studies, whose watcher runs without
// this library. tests/vectors/secrets.txt has examples that both must pass.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace twinrun {

// A text without secrets that have a name. From the first such name on the rest is hidden: numbers
// of things, paths, and options with numbers behind a secret stay.
//
// A name is looked for in any case, also within a longer word: "secretKey", "ACCESSKEY", "mytoken".
// Short names ("key", "pass", "auth") are words of their own, or begin where the case changes, as
// in "AccountKey". "pass" and "pwd" may end a word, as in "DBPASS", unless it is an ordinary one:
// "compass". "key" and "pw" may end a few words: "authkey", "bindpw".
std::string without_named_secrets(std::string_view text);

// Whether the name that ends there is that of a variable in which shells keep a folder: "PWD=/home"
// and "OLDPWD=/tmp" are no passwords. "uid=me;PWD=x", "DB_PWD=x" and "--oldpwd x" are.
bool is_folder_of_shell(std::string_view text, std::size_t name_end);

// The text behind the signs that programs write for others ("%3D", "\u0022", quotes of a shell), if
// they hide the name of a secret or a URL. Any other text stays as it is.
std::string plain_signs(std::string_view text);

}  // namespace twinrun

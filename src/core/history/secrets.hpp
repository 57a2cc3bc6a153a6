// What of a command line and of other texts is no secret. A secret is replaced by "...", the same
// for all values: two runs with two tokens do not differ by them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

// Without user, password, query and fragment of URLs, and without values that are named as secrets:
// "s3://key:pw@bucket/x token=pw" becomes "s3://bucket/x token=...". From the first such name on
// the rest is hidden: see named_secrets.hpp.
std::string without_secrets(std::string_view text);

// The words of a command line without secrets. {"--token", "pw"} becomes {"--token", "..."}.
std::vector<std::string> without_secrets(std::vector<std::string> words);

// Words as one line, quoted as for a shell, and back. A line may have been cut at its end.
std::string quoted_line(const std::vector<std::string>& words);
std::vector<std::string> words_of_line(std::string_view line);

}  // namespace twinrun

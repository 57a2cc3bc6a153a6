// Which variables of the environment a history keeps. Studies keep the same ones: their watcher, which runs without this library, gets
// these rules as text.
#pragma once

#include <span>
#include <string_view>

namespace twinrun {

// A variable is kept if it has one of `names` or begins with one of `prefixes`, unless it begins with one of `bookkeeping` or its name has
// one of `secret_words` or `secret_variable_words` in it.
struct VariableRules {
    std::span<const char* const> names;
    std::span<const char* const> prefixes;
    std::span<const char* const> bookkeeping;  // of launchers: other in every run, and partly keys
    std::span<const char* const>
        of_one_job;  // among `names`: studies, whose tasks share their conditions, leave them out
    std::span<const char* const> secret_words;  // in capitals; see names_secret
    std::span<const char* const>
        secret_variable_words;  // of variables, besides: `--key id` of a program is no secret
};
const VariableRules& variable_rules();

bool keeps_variable(std::string_view name);

// Does the name of an option or a variable say that its value is a secret? It does if one of `secret_words` stands in it, in whatever
// case, with no letter right before or behind it: "--api-key" and "HF_TOKEN" do, "--max-tokens" does not.
bool names_secret(std::string_view name);

}  // namespace twinrun

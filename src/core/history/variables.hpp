// Which environment variables a history stores. Studies store the same ones: their watcher, which
// runs without this library, gets these rules as text.
#pragma once

#include <span>
#include <string_view>

namespace twinrun {

// A variable is stored if its name is one of `names` or begins with one of `prefixes`, unless the
// name begins with one of `bookkeeping`, or has a word that ends with one of `secret_words` or is
// one of `secret_variable_words`.
struct VariableRules {
    std::span<const char* const> names;
    std::span<const char* const> prefixes;
    // variables of launchers: different in every run, and some are secret
    std::span<const char* const> bookkeeping;
    // Some of `names`, which studies leave out: all tasks of a study should have the same
    // conditions.
    std::span<const char* const> of_one_job;
    std::span<const char* const> secret_words;  // in capitals; see names_secret()
    // More secret words, only in names of variables: a program's option `--key id` is not a secret.
    std::span<const char* const> secret_variable_words;
};
const VariableRules& variable_rules();

// Whether a variable of this name is stored.
bool keeps_variable(std::string_view name);

// Whether the name of an option or a variable says that its value is a secret: it contains one of
// `secret_words`, in any case, with no letter directly after it. "--api-key", "HF_TOKEN" and
// "AUTHTOKEN" do, "--max-tokens" does not.
bool names_secret(std::string_view name);

// As names_secret(), for options and other names of values, and for more words: "--wandb-key",
// "authToken", "privatekey", "-DTOKEN", "-Dpwd" and "Authorization" do, "--key", "--sort-key" and
// "--token-count" do not.
bool option_names_secret(std::string_view name);

// Whether a word by itself says that the next one is a secret: "token", "API_KEY", "Bearer".
bool word_names_secret(std::string_view word);

}  // namespace twinrun

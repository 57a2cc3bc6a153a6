#include "history/variables.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

namespace twinrun {

namespace {

constexpr std::array kNames{
    "PMI_SIZE",
    "PALS_LOCAL_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
    "PYTHONHASHSEED",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_BIND_NOW",
    "LANG",
    "LC_ALL",
    "LC_NUMERIC",
    "TF_DETERMINISTIC_OPS",
    "TF_CUDNN_DETERMINISTIC",
    "TF_ENABLE_ONEDNN_OPTS",
    "XLA_FLAGS",
    "JAX_ENABLE_X64",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_PLATFORMS",
    "JAX_THREEFRY_PARTITIONABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_TASKS_PER_NODE",
};
constexpr std::array kPrefixes{
    "OMP_",    "KMP_",       "GOMP_",     "MKL_",   "OPENBLAS_", "GOTO_",     "BLIS_",
    "VECLIB_", "NUMEXPR_",   "ARMPL_",    "DNNL_",  "ONEDNN_",   "OMPI_MCA_", "PRTE_MCA_",
    "MPICH_",  "MPIR_CVAR_", "I_MPI_",    "MV2_",   "UCX_",      "FI_",       "NCCL_",
    "CUDA_",   "CUBLAS_",    "CUBLASLT_", "CUDNN_", "HSA_",      "HIP_",      "ROCR_",
    "MALLOC_", "KOKKOS_",    "NPY_",      "GMX_",   "TWINRUN_",
};
constexpr std::array kBookkeeping{
    "OMPI_MCA_orte_",           "OMPI_MCA_prte_",      "OMPI_MCA_ess_",
    "OMPI_MCA_pmix_",           "OMPI_MCA_initial_",   "PRTE_MCA_ess_",
    "PRTE_MCA_pmix_",           "PRTE_MCA_prte_",      "I_MPI_HYDRA_",
    "MPICH_INTERFACE_HOSTNAME", "TWINRUN_TASK_FOLDER", "TWINRUN_INTERPOSE_FOLDER",
};
constexpr std::array kOfOneJob{"SLURM_JOB_ID"};
// Also as the end of a longer word: "AUTHTOKEN", "mypassword".
constexpr std::array kSecretWords{"PASSWORD", "PASSWD",  "PASSPHRASE", "SECRET",     "TOKEN",
                                  "API_KEY",  "API-KEY", "APIKEY",     "CREDENTIAL", "CREDENTIALS",
                                  "OAUTH",    "JWT",     "USERPASS"};
constexpr std::array kSecretVariableWords{"PASS", "PASSWORDS",     "PW",   "SECRETS", "KEY", "KEYS",
                                          "AUTH", "AUTHORIZATION", "CRED", "CREDS"};
// More of options: a key is a secret where a word says of what it is the key.
constexpr std::array kSecretOptionWords{"PASS",          "PASSWORDS", "PW",    "SECRETS",   "AUTH",
                                        "AUTHORIZATION", "COOKIE",    "CRED",  "SIGNATURE", "CREDS",
                                        "PWD",           "PASSCODE",  "BEARER"};
// Ends of names of options, without their hyphens: "privatekey", "Access-Key-ID", "secret_id".
constexpr std::array<std::string_view, 11> kSecretEnds{
    "PRIVATEKEY", "ACCESSKEY",     "ACCESSKEYID", "SECRETKEY",   "SECRETID",    "ACCOUNTKEY",
    "SIGNINGKEY", "ENCRYPTIONKEY", "AUTHTOKEN",   "ACCESSTOKEN", "SESSIONTOKEN"};
// Words that stand before a secret by themselves: "password abc".
constexpr std::array<std::string_view, 10> kSecretNames{"TOKEN",    "PASSWORD", "PASSWD", "PASSPHRASE",
                                                        "PASSCODE", "SECRET",   "APIKEY", "BEARER",
                                                        "SECRETID", "ACCESSKEY"};
// What is counted is no secret: "--token-count 5".
constexpr std::array<std::string_view, 7> kCounts{"COUNT", "COUNTS", "DIM", "LEN", "LENGTH", "LIMIT", "SIZE"};
constexpr std::array<std::string_view, 10> kPlainKeys{"SORT", "GROUP",  "PRIMARY", "FOREIGN", "PARTITION",
                                                      "PRNG", "RANDOM", "RNG",     "SEED",    "INDEX"};

constexpr VariableRules kRules{kNames,    kPrefixes,    kBookkeeping,
                               kOfOneJob, kSecretWords, kSecretVariableWords};

bool begins_with_one_of(std::string_view name, std::span<const char* const> prefixes) {
    return std::any_of(prefixes.begin(), prefixes.end(),
                       [&](const char* prefix) { return name.starts_with(prefix); });
}

std::string in_capitals(std::string_view name) {
    std::string capitals(name);
    for (char& c : capitals) {
        if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    }
    return capitals;
}

// begins: whether the word must begin where the name has no letter before.
bool has_word_of(std::string_view name, std::span<const char* const> words, bool begins = true) {
    const std::string capitals = in_capitals(name);
    const auto letter = [&](std::size_t at) {
        return at < capitals.size() && capitals[at] >= 'A' && capitals[at] <= 'Z';
    };
    return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
        for (std::size_t at = capitals.find(word); at != std::string::npos;
             at = capitals.find(word, at + 1)) {
            if (!(begins && letter(at - 1)) && !letter(at + word.size())) return true;
        }
        return false;
    });
}

// "authToken" as "auth-Token".
std::string with_hyphens(std::string_view name) {
    std::string out;
    for (const char c : name) {
        const bool is_capital = c >= 'A' && c <= 'Z';
        if (is_capital && !out.empty() && out.back() >= 'a' && out.back() <= 'z') out += '-';
        out += c;
    }
    return out;
}

// Whether a name ends with a key of something, such as "wandb-key", which may be a secret.
bool names_key_of(std::string_view name) {
    std::string capitals = in_capitals(name);
    const bool many = capitals.ends_with("KEYS");
    if (!many && !capitals.ends_with("KEY")) return false;
    capitals.resize(capitals.size() - (many ? 4 : 3));
    if (!capitals.ends_with('-') && !capitals.ends_with('_')) return false;
    capitals.pop_back();
    const std::size_t end = capitals.find_last_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
    const std::string_view of = std::string_view(capitals).substr(end == std::string::npos ? 0 : end + 1);
    return !of.empty() && std::find(kPlainKeys.begin(), kPlainKeys.end(), of) == kPlainKeys.end();
}

// "-DTOKEN" and "-etoken" define TOKEN and token, if -D and -e are what they are to compilers and
// containers; "-debug" does not.
bool may_define(std::string_view name) {
    return name.size() > 2 && name[0] == '-' && (name[1] == 'D' || name[1] == 'e');
}

// The name of an option without the signs before it: "TOKEN" of "--TOKEN", "/TOKEN" and "-DTOKEN".
std::string_view without_signs(std::string_view name) {
    if (may_define(name) && name[2] >= 'A' && name[2] <= 'Z') return name.substr(2);
    return name.substr(std::min(name.find_first_not_of("-+/"), name.size()));
}

// In capitals, without hyphens.
std::string joined(std::string_view name) {
    std::string letters = in_capitals(without_signs(name));
    std::erase_if(letters, [](char c) { return c == '-' || c == '_'; });
    return letters;
}

}  // namespace

const VariableRules& variable_rules() { return kRules; }

bool names_secret(std::string_view name) { return has_word_of(name, kSecretWords, false); }

bool option_names_secret(std::string_view name) {
    if (may_define(name) && option_names_secret(name.substr(2))) return true;
    const std::string words = with_hyphens(without_signs(name));
    const std::string letters = joined(name);
    const std::string last = in_capitals(words.substr(words.find_last_of("-_.") + 1));
    if (std::find(kCounts.begin(), kCounts.end(), last) != kCounts.end()) return false;
    return names_secret(words) || has_word_of(words, kSecretOptionWords) || names_key_of(words) ||
           letters == "SIG" || std::any_of(kSecretEnds.begin(), kSecretEnds.end(), [&](std::string_view end) {
               return letters.ends_with(end);
           });
}

bool word_names_secret(std::string_view word) {
    return std::find(kSecretNames.begin(), kSecretNames.end(), joined(word)) != kSecretNames.end();
}

bool keeps_variable(std::string_view name) {
    const bool listed =
        std::find(kNames.begin(), kNames.end(), name) != kNames.end() || begins_with_one_of(name, kPrefixes);
    return listed && !begins_with_one_of(name, kBookkeeping) && !names_secret(name) &&
           !has_word_of(name, kSecretVariableWords);
}

}  // namespace twinrun

// The configuration file of VELOC: INI syntax without sections, keys of VELOC's and keys that begin
// with twinrun_. docs/reference/veloc.md lists them. Its bytes come from outside: an invalid file
// gives an error of one line that names the place.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace twinrun::veloc {

// The file's settings for a region; VELOC itself knows only bytes.
struct RegionRule {
    int dtype = 0;  // twr_dtype; 0: not set, the region is bytes that compare exactly
    std::size_t item_bytes = 1;
    double atol = -1;  // both negative: the run's tolerance
    double rtol = -1;
    std::string field;  // its name in the history; empty: region-<id>
};

struct Config {
    std::string scratch;
    std::string persistent;  // empty: checkpoints stay on scratch
    bool sync = false;
    int max_versions = 0;  // 0: all
    bool digests_only = false;
    // flusher = none: steps stay on scratch until `twinrun flush` moves them
    bool keeps_local = false;
    std::string reference;  // folder of the histories to compare with, one a name
    std::string log;
    // Checkpoint_mem copies, so that regions may change before Checkpoint_end
    bool copy_regions = true;
    double atol = 0;  // also in settings; here for regions that set only one of the two
    double rtol = 0;
    std::vector<std::pair<std::string, std::string>> settings;  // for twr_settings_set, in order
    std::map<std::string, RegionRule> rules;                    // by "<id>" and "<name>.<id>"
    // Keys that neither VELOC nor twinrun knows; VELOC ignores them too.
    std::vector<std::string> unknown;

    // The rule of a region: by its name and id; if there is none, by its id alone.
    [[nodiscard]] RegionRule rule(const std::string& group, int id) const;
};

using Variables = std::vector<std::pair<std::string, std::string>>;

// Parses a configuration. text: of the file; where: its name, for messages; environment: variables;
// VELOC_<KEY> overrides the file's key. Returns the error, if there is one.
std::optional<std::string> parse_config(std::string_view text, const std::string& where,
                                        const Variables& environment, Config& config);

// The same for the file at this path. "": no file, only variables.
std::optional<std::string> read_config(const std::string& path, const Variables& environment, Config& config);

// The names of regions without a name of their own, as in VELOC.
inline constexpr const char* kDefaultGroup = "default";

// Whether a checkpoint may have this name: VELOC's rule, and no names that lead out of a folder.
bool valid_name(std::string_view name);

}  // namespace twinrun::veloc

// SPDX-License-Identifier: Apache-2.0
#include "haccio/options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string_view>
#include <system_error>

namespace haccio {

const char* const kUsage =
    "Usage: mpiexec -n RANKS haccio [options] FILE\n"
    "       mpiexec -n RANKS haccio split [options]    time of making communicators (haccio split --help)\n"
    "       haccio study size|interference|split ...   twinrun aggregate study, with this program\n"
    "\n"
    "The I/O of HACC: particles of 38 bytes (xx yy zz vx vy vz phi f32, pid i64, mask u16), an array a "
    "variable in\n"
    "memory, from all ranks to one file or several, and back.\n"
    "\n"
    "Data:\n"
    "  --particles N[,N...]   of a rank (default 25000); several: rank after rank, and again from the first\n"
    "  --skew S               ranks hold N (1 + S u) particles, u in [-1, 1) by rank and seed; S: 0 "
    "(default) to 1\n"
    "  --layout WHAT          records (default: interleaved), blocks (rank after rank, in each one variable "
    "after the\n"
    "                         other), variables (one variable of all ranks after the other)\n"
    "\n"
    "Methods, interleaved in shuffled order in each repetition, each with a file of its own:\n"
    "  --methods A[,B...]     names of the list below (default aggregate)\n"
    "  --method 'A [X=Y]...'  one more, with settings of its own; may be repeated\n"
    "    aggregate                 twinrun_aggregate. Settings: those of the options of this name below\n"
    "    posix                     records: a pwrite a value; blocks and variables: a pwrite a variable\n"
    "    posix-packed              records and blocks: gathered in memory, one pwrite; variables: as posix\n"
    "    mpiio                     MPI_File_write_at, a call a variable; records through a file view. "
    "Settings: hints\n"
    "    mpiio-collective          MPI_File_write_at_all, the same\n"
    "    mpiio-two-phase           the same, with two-phase I/O demanded by hints\n"
    "    mpiio-packed, mpiio-collective-packed, mpiio-two-phase-packed\n"
    "                              records and blocks: gathered in memory, one call\n"
    "    ceiling-copy              no I/O: each rank copies its data in memory\n"
    "    ceiling-write             no exchange: the first rank writes as many bytes, in large pieces\n"
    "  --operations WHAT      write (default), read, or write,read. Reading alone needs a file that was "
    "kept\n"
    "  --files HOW            one (default), node (one a node), rank (one a rank): FILE.00000 and so on\n"
    "\n"
    "Of aggregate:\n"
    "  --nodes-per-file N     --aggregators N (a file)        --placement cost|rank|bridge|random|worst\n"
    "  --topology WHAT        --backend posix|uring|mpiio     --buffers N     --buffer-bytes N     "
    "--block-bytes N\n"
    "  --time-limit S         --placement-seed N              (docs/reference/aggregate.md)\n"
    "  --declare WHEN         once (default; apart from the times), each (in the time of each repetition)\n"
    "\n"
    "Measurement. Time: after a barrier, from the first rank's start to the last rank's end:\n"
    "  --repeat N             (default 1)\n"
    "  --warmup N             repetitions of all methods that do not count (default 0)\n"
    "  --until FILE           end before the next repetition when FILE is there\n"
    "  --seconds S            end before the next repetition when that many have passed\n"
    "  --seed N               of the order, and of --skew (default 1)\n"
    "  --sync WHEN            none (default), after (fsync by a rank a node, timed apart), method (within "
    "its time)\n"
    "  --cold                 drop files from the page cache before they are read\n"
    "  --verify               check every value of written files, by plain reads, and of what methods read; "
    "exit\n"
    "                         status 1 and the first wrong value of each rank if one is wrong\n"
    "  --keep                 leave the files: FILE with one method, FILE-METHOD with several\n"
    "\n"
    "Results:\n"
    "  --json FILE            a line for the run, each repetition, each method's summary; - is standard "
    "output\n"
    "  --csv FILE             a line a repetition\n"
    "  --quiet                no table\n"
    "  --help                 print this\n"
    "  --print-mpiexec        print what starts programs of the MPI library that this one was built with\n"
    "\n"
    "Exit status: 0 done, 1 a value is wrong, 2 could not run.\n";

const char* const kSplitUsage =
    "Usage: mpiexec -n RANKS haccio split [options]\n"
    "\n"
    "Time of making a communicator for each of P partitions: consecutive ranks, which overlap where P "
    "partitions have more\n"
    "places than there are ranks.\n"
    "\n"
    "  --communicators P     (default 8)\n"
    "  --size K              ranks of each, 1 to RANKS (default: so many that neighbours share a rank)\n"
    "  --ways A[,B...]       interleaved in shuffled order (default: all)\n"
    "      split                 P times MPI_Comm_split, by all ranks\n"
    "      group                 MPI_Comm_create_group, by the ranks of each\n"
    "      coloured              the same communicators by MPI_Comm_split with colours: one for all "
    "partitions that do\n"
    "                            not overlap, and as few as can be\n"
    "      disjoint              one MPI_Comm_split into P partitions that do not overlap (with other "
    "ranks)\n"
    "  --repeat N (default 1)   --warmup N (default 0)   --seed N (default 1)   --json FILE   --quiet   "
    "--help\n"
    "\n"
    "Exit status: 0 done, 1 a communicator has the wrong ranks, 2 could not run.\n";

namespace {

std::uint64_t whole(const std::string& option, std::string_view text, std::uint64_t least,
                    std::uint64_t most) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
        throw BadArgument(option + ": '" + std::string(text) + "' is not a whole number from " +
                          std::to_string(least) + " to " + std::to_string(most));
    return value;
}

double number(const std::string& option, const std::string& text, double least, double most) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most))
        throw BadArgument(option + ": '" + text + "' is not a number from " + std::to_string(least) + " to " +
                          std::to_string(most));
    return value;
}

std::vector<std::string> parts(const std::string& text, char separator) {
    std::vector<std::string> result;
    for (std::size_t begin = 0;;) {
        const std::size_t end = text.find(separator, begin);
        result.push_back(text.substr(begin, end - begin));
        if (end == std::string::npos) return result;
        begin = end + 1;
    }
}

template <class Names>
std::string listed(const Names& names) {
    std::string result;
    for (const char* name : names)
        result += (result.empty() ? "" : ", ") + std::string(name);
    return result;
}

template <class Names>
std::size_t one_of(const std::string& option, const Names& names, const std::string& text) {
    const auto found =
        std::find_if(std::begin(names), std::end(names), [&](const char* name) { return text == name; });
    if (found == std::end(names)) throw BadArgument(option + ": '" + text + "' is none of " + listed(names));
    return static_cast<std::size_t>(found - std::begin(names));
}

MethodChoice method_of(const std::string& option, const std::string& text) {
    MethodChoice choice;
    for (const std::string& word : parts(text, ' ')) {
        if (word.empty()) continue;
        const std::size_t equals = word.find('=');
        if (choice.name.empty()) {
            one_of(option, kMethodNames, word);
            choice.name = word;
        } else if (equals == std::string::npos || equals == 0) {
            throw BadArgument(option + ": '" + word + "' is not NAME=VALUE");
        } else {
            choice.settings.emplace_back(word.substr(0, equals), word.substr(equals + 1));
        }
        choice.label += (choice.label.empty() ? "" : " ") + word;
    }
    if (choice.name.empty()) throw BadArgument(option + " needs the name of a method");
    return choice;
}

// Words of a command line: options with their values, "--name value" and "--name=value", and the
// rest.
class Words {
   public:
    explicit Words(const std::vector<std::string>& words) : words_(words) {}

    bool next() {
        if (attached_) throw BadArgument(option_ + " takes no value");
        if (at_ == words_.size()) return false;
        option_ = words_[at_++];
        if (const auto equals = option_.find('='); option_.starts_with("--") && equals != std::string::npos) {
            attached_ = option_.substr(equals + 1);
            option_.resize(equals);
        }
        return true;
    }
    [[nodiscard]] const std::string& option() const { return option_; }
    std::string value() {
        if (attached_) return *std::exchange(attached_, std::nullopt);
        if (at_ == words_.size()) throw BadArgument(option_ + " needs a value");
        return words_[at_++];
    }
    std::string file() {
        std::string name = value();
        if (name.empty()) throw BadArgument(option_ + " needs the name of a file");
        return name;
    }

   private:
    const std::vector<std::string>& words_;
    std::size_t at_ = 0;
    std::string option_;
    std::optional<std::string> attached_;
};

constexpr const char* kAggregateOptions[] = {
    "nodes-per-file", "aggregators",  "placement",   "topology",   "backend",
    "buffers",        "buffer-bytes", "block-bytes", "time-limit", "placement-seed",
};
constexpr const char* kFiles[] = {"one", "node", "rank"};

void check_setting(const std::string& option, const std::string& name, const std::string& value) {
    if (name == "nodes-per-file" || name == "aggregators" || name == "buffers") {
        whole(option, value, 0, 1u << 30);
    } else if (name == "buffer-bytes" || name == "block-bytes") {
        whole(option, value, 0, std::uint64_t{1} << 40);
    } else if (name == "placement-seed") {
        whole(option, value, 0, UINT64_MAX);
    } else if (name == "time-limit") {
        number(option, value, -1e9, 1e9);
    }
}

// Settings that options give to several methods.
struct SharedSettings {
    std::vector<std::pair<std::string, std::string>> all;        // of every method
    std::vector<std::pair<std::string, std::string>> aggregate;  // of the method aggregate
};

// Each of the next functions takes one option and its value, if it knows it.

// What is written, and how.
bool take_data_option(const std::string& option, Words& words, Options& options) {
    if (option == "--particles") {
        options.particles.clear();
        for (const std::string& part : parts(words.value(), ','))
            options.particles.push_back(whole(option, part, 0, std::uint64_t{1} << 36));
    } else if (option == "--skew") {
        options.skew = number(option, words.value(), 0, 1);
    } else if (option == "--layout") {
        options.layout = static_cast<Layout>(one_of(option, kLayoutNames, words.value()));
    } else if (option == "--methods") {
        for (const std::string& part : parts(words.value(), ','))
            options.methods.push_back(method_of(option, part));
    } else if (option == "--method") {
        options.methods.push_back(method_of(option, words.value()));
    } else if (option == "--operations") {
        options.write = options.read = false;
        for (const std::string& part : parts(words.value(), ',')) {
            constexpr const char* kOperations[] = {"write", "read"};
            (one_of(option, kOperations, part) == 0 ? options.write : options.read) = true;
        }
    } else {
        return false;
    }
    return true;
}

bool take_shared_setting(const std::string& option, Words& words, SharedSettings& shared) {
    if (option == "--files") {
        shared.all.emplace_back("files", kFiles[one_of(option, kFiles, words.value())]);
        return true;
    }
    const std::string name = option.starts_with("--") ? option.substr(2) : "";
    const bool known = std::any_of(std::begin(kAggregateOptions), std::end(kAggregateOptions),
                                   [&](const char* one) { return name == one; });
    if (!known) return false;
    std::string value = words.value();
    check_setting(option, name, value);
    shared.aggregate.emplace_back(name, std::move(value));
    return true;
}

// How it is measured.
bool take_measure_option(const std::string& option, Words& words, Options& options) {
    if (option == "--declare") {
        constexpr const char* kWhen[] = {"once", "each"};
        options.declare_each = one_of(option, kWhen, words.value()) == 1;
    } else if (option == "--repeat") {
        options.repeat = whole(option, words.value(), 1, 1'000'000'000);
    } else if (option == "--warmup") {
        options.warmup = whole(option, words.value(), 0, 1'000'000);
    } else if (option == "--until") {
        options.until = words.file();
    } else if (option == "--seconds") {
        options.seconds = number(option, words.value(), 1e-3, 1e9);
    } else if (option == "--seed") {
        options.seed = whole(option, words.value(), 0, UINT64_MAX);
    } else if (option == "--sync") {
        constexpr const char* kWhen[] = {"none", "after", "method"};
        options.sync = static_cast<Sync>(one_of(option, kWhen, words.value()));
    } else if (option == "--cold") {
        options.cold = true;
    } else if (option == "--verify") {
        options.verify = true;
    } else {
        return false;
    }
    return true;
}

// What is left, and told.
bool take_output_option(const std::string& option, Words& words, Options& options) {
    if (option == "--keep") {
        options.keep = true;
    } else if (option == "--json") {
        options.json = words.file();
    } else if (option == "--csv") {
        options.csv = words.file();
    } else if (option == "--quiet") {
        options.quiet = true;
    } else {
        return false;
    }
    return true;
}

void take_path(const std::string& word, Options& options) {
    if (word.starts_with("-")) throw BadArgument("unknown option '" + word + "'; haccio --help lists them");
    if (!options.path.empty())
        throw BadArgument("two files, '" + options.path + "' and '" + word + "': give one");
    options.path = word;
}

// Checks a method's own settings, and puts the shared ones before them: the last one counts.
void settle_method(MethodChoice& choice, const SharedSettings& shared, const Options& options) {
    const bool aggregating = choice.name == "aggregate";
    const bool hints = choice.name.starts_with("mpiio");
    for (const auto& [name, value] : choice.settings) {
        if (name == "files") {
            one_of(choice.label, kFiles, value);
        } else if (aggregating) {
            one_of(choice.label, kAggregateOptions, name);
            check_setting(choice.label, name, value);
        } else if (!hints) {
            throw BadArgument(choice.label + ": " + choice.name + " has no setting '" + name + "'");
        }
    }
    auto settings = shared.all;
    if (aggregating) settings.insert(settings.end(), shared.aggregate.begin(), shared.aggregate.end());
    settings.insert(settings.end(), choice.settings.begin(), choice.settings.end());
    choice.settings = std::move(settings);
    const auto same = std::count_if(options.methods.begin(), options.methods.end(),
                                    [&](const MethodChoice& other) { return other.label == choice.label; });
    if (same > 1) throw BadArgument("the method '" + choice.label + "' is there twice");
    if (!options.write && choice.name.starts_with("ceiling"))
        throw BadArgument(choice.name + " writes, and reads nothing");
}

}  // namespace

std::optional<std::string> MethodChoice::setting(const std::string& setting_name) const {
    for (auto it = settings.rbegin(); it != settings.rend(); ++it) {
        if (it->first == setting_name) return it->second;
    }
    return std::nullopt;
}

Options parse_options(const std::vector<std::string>& arguments) {
    Options options;
    SharedSettings shared;
    Words words(arguments);
    while (words.next()) {
        const std::string option = words.option();
        const bool taken =
            take_data_option(option, words, options) || take_shared_setting(option, words, shared) ||
            take_measure_option(option, words, options) || take_output_option(option, words, options);
        if (!taken) take_path(option, options);
    }
    if (options.path.empty()) throw BadArgument("a file is missing; haccio --help says how to call it");
    if (options.cold && !options.read) throw BadArgument("--cold is of --operations read");
    if (options.methods.empty()) options.methods.push_back(method_of("--methods", "aggregate"));
    for (MethodChoice& choice : options.methods)
        settle_method(choice, shared, options);
    const bool aggregates =
        std::any_of(options.methods.begin(), options.methods.end(),
                    [](const MethodChoice& choice) { return choice.name == "aggregate"; });
    if (!shared.aggregate.empty() && !aggregates)
        throw BadArgument("--" + shared.aggregate.front().first + " is of the method aggregate");
    return options;
}

SplitOptions parse_split_options(const std::vector<std::string>& arguments) {
    SplitOptions options;
    Words words(arguments);
    while (words.next()) {
        const std::string& option = words.option();
        if (option == "--communicators") {
            options.communicators = whole(option, words.value(), 1, 1'000'000);
        } else if (option == "--size") {
            options.size = whole(option, words.value(), 1, 1u << 30);
        } else if (option == "--ways") {
            for (std::string& part : parts(words.value(), ',')) {
                one_of(option, kSplitWays, part);
                if (std::find(options.ways.begin(), options.ways.end(), part) == options.ways.end())
                    options.ways.push_back(std::move(part));
            }
        } else if (option == "--repeat") {
            options.repeat = whole(option, words.value(), 1, 1'000'000);
        } else if (option == "--warmup") {
            options.warmup = whole(option, words.value(), 0, 1'000'000);
        } else if (option == "--seed") {
            options.seed = whole(option, words.value(), 0, UINT64_MAX);
        } else if (option == "--json") {
            options.json = words.file();
        } else if (option == "--quiet") {
            options.quiet = true;
        } else {
            throw BadArgument("unknown argument '" + option + "'; haccio split --help lists them");
        }
    }
    if (options.ways.empty()) options.ways.assign(std::begin(kSplitWays), std::end(kSplitWays));
    return options;
}

}  // namespace haccio

// SPDX-License-Identifier: Apache-2.0
#include "haccio/job.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "haccio/agree.hpp"
#include "haccio/method.hpp"
#include "haccio/posix_file.hpp"
#include "haccio/random.hpp"
#include "haccio/results.hpp"

namespace haccio {

namespace {

using nlohmann::json;

constexpr std::size_t kComplaintsShown = 8;
constexpr std::uint64_t kVerifiedPiece = 1 << 16;  // particles read at once

struct Entry {
    MethodChoice choice;
    std::unique_ptr<Method> method;
    std::string path;  // as options give it: several files have this name and a number
    // Of the file's ranks, the first on its node: what this node holds in memory of the file, it
    // brings to storage, or drops.
    bool keeper = false;
};

// FILE, or FILE-mpiio-two-phase where methods are several. No colon: ROMIO takes what is before it
// for a file system.
std::string path_of(const Options& options, const MethodChoice& choice) {
    if (options.methods.size() == 1) return options.path;
    std::string suffix = choice.label;
    std::replace_if(
        suffix.begin(), suffix.end(),
        [](unsigned char c) { return !(c < 128 && std::isalnum(c)) && c != '-' && c != '.'; }, '-');
    return options.path + "-" + suffix;
}

std::string wrong_values(std::uint64_t wrong) {
    return wrong == 1 ? "1 value of this rank is wrong"
                      : std::to_string(wrong) + " values of this rank are wrong";
}

class Job {
   public:
    Job(const Options& options, MPI_Comm world) : options_(options), world_(world), clock_(world) {
        MPI_Comm_rank(world, &rank_);
        MPI_Comm_size(world, &ranks_);
    }

    int run() {
        const auto rank = static_cast<std::uint64_t>(rank_);
        particles_ = std::make_unique<Particles>(
            rank, particles_of(options_.particles, options_.skew, options_.seed, rank));
        const std::uint64_t own = particles_->count();
        MPI_Allreduce(&own, &total_, 1, MPI_UINT64_T, MPI_SUM, world_);
        together(world_, [&] {
            if (rank_ == 0) results_ = std::make_unique<Results>(options_.json, options_.csv);
        });
        describe();
        for (const MethodChoice& choice : options_.methods)
            entries_.push_back(prepared(choice));

        const std::uint64_t rounds = options_.warmup + options_.repeat;
        for (std::uint64_t round = 0; round < rounds && !ended(); ++round) {
            const std::vector<std::size_t> order = shuffled(entries_.size(), options_.seed, round);
            for (std::size_t at = 0; at < order.size(); ++at) {
                Entry& entry = entries_[order[at]];
                for (const bool reading : {false, true}) {
                    if (!(reading ? options_.read : options_.write)) continue;
                    Measurement measurement = measured(entry, reading);
                    if (round < options_.warmup) continue;
                    measurement.repetition = round - options_.warmup;
                    measurement.order = at;
                    together(world_, [&] {
                        if (rank_ == 0) results_->add(measurement);
                    });
                }
            }
        }
        finish();
        return wrong_ ? 1 : 0;
    }

   private:
    // Where the run takes place: a line of the results.
    void describe() {
        char name[MPI_MAX_PROCESSOR_NAME] = "";
        int length = 0;
        MPI_Get_processor_name(name, &length);
        const std::vector<std::string> hosts =
            gather_texts(world_, std::string(name, static_cast<std::size_t>(length)));
        const std::vector<std::string> counts = gather_texts(world_, std::to_string(particles_->count()));
        if (rank_ != 0) return;
        std::map<std::string, int> ranks_of;
        for (const std::string& host : hosts)
            ++ranks_of[host];
        std::vector<std::uint64_t> particles;
        for (const std::string& count : counts)
            particles.push_back(std::stoull(count));
        library_ = mpi_library();
        json line = {{"kind", "run"},
                     {"mpi", library_},
                     {"ranks", ranks_},
                     {"hosts", ranks_of},
                     {"particles",
                      {{"least", *std::min_element(particles.begin(), particles.end())},
                       {"most", *std::max_element(particles.begin(), particles.end())},
                       {"total", total_}}},
                     {"bytes", total_ * kParticleBytes},
                     {"layout", kLayoutNames[static_cast<std::size_t>(options_.layout)]}};
        constexpr const char* kSyncNames[] = {"none", "after", "method"};
        line["options"] = {{"file", options_.path},
                           {"particles", options_.particles},
                           {"skew", options_.skew},
                           {"repeat", options_.repeat},
                           {"warmup", options_.warmup},
                           {"seed", options_.seed},
                           {"verify", options_.verify},
                           {"cold", options_.cold},
                           {"write", options_.write},
                           {"read", options_.read},
                           {"declare", options_.declare_each ? "each" : "once"},
                           {"sync", kSyncNames[static_cast<std::size_t>(options_.sync)]}};
        results_->line(line);
        if (options_.quiet || options_.json == "-") return;
        std::printf("haccio: %d ranks on %zu %s, %s; %s, %llu particles: %.3f MB\n", ranks_, ranks_of.size(),
                    ranks_of.size() == 1 ? "host" : "hosts", library_.c_str(),
                    kLayoutNames[static_cast<std::size_t>(options_.layout)],
                    static_cast<unsigned long long>(total_),
                    static_cast<double>(total_ * kParticleBytes) / 1e6);
    }

    Entry prepared(const MethodChoice& choice) {
        Entry entry{choice, nullptr, path_of(options_, choice), false};
        MPI_Barrier(world_);
        Stopwatch watch;
        together(world_, [&] { entry.method = make_method(choice, options_, *particles_, world_); });
        watch.lap("create");
        together(world_, [&] { entry.method->declare(); });
        watch.lap("declare");
        MPI_Comm node = MPI_COMM_NULL;
        int place = 0;
        MPI_Comm_split_type(entry.method->group().comm, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node);
        MPI_Comm_rank(node, &place);
        MPI_Comm_free(&node);
        entry.keeper = place == 0;
        json seconds;
        for (const auto& [phase, value] : watch.phases())
            seconds[phase] = largest(world_, value);
        together(world_, [&] {
            if (rank_ != 0) return;
            json settings = json::object();
            for (const auto& [name, value] : choice.settings)
                settings[name] = value;
            results_->line({{"kind", "method"},
                            {"method", choice.label},
                            {"settings", settings},
                            {"files", entry.method->group().files},
                            {"seconds", seconds}});
        });
        return entry;
    }

    // [collective] Whether --until or --seconds says that it is over.
    bool ended() {
        if (options_.until.empty() && options_.seconds == 0) return false;
        int over = 0;
        if (rank_ == 0) {
            const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
            over = (!options_.until.empty() && ::access(options_.until.c_str(), F_OK) == 0) ||
                   (options_.seconds > 0 && passed.count() >= options_.seconds);
        }
        MPI_Bcast(&over, 1, MPI_INT, 0, world_);
        return over != 0;
    }

    void remove_files(const Entry& entry) {
        together(world_, [&] {
            const FileGroup group = entry.method->group();
            if (group.rank != 0) return;
            // Under a name that was given as that of an output; nothing but files are outputs.
            const auto remove = [](const std::string& path) {
                struct stat about {};
                if (::lstat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode))
                    throw Failure(path +
                                  ": is not a regular file (a link, a folder, a pipe), and is left alone: "
                                  "remove it, or name another output");
                if (::unlink(path.c_str()) != 0 && errno != ENOENT)
                    throw Failure(path + ": cannot be removed: " + std::generic_category().message(errno));
            };
            remove(file_path(entry.path, group));
            // Not one that the library would refuse to replace.
            const std::string index = entry.path + ".twr-index";
            if (entry.method->prefix_path() && group.files > 1 && group.file == 0) {
                const json said = json::parse(std::ifstream(index), nullptr, false);
                if (said.is_object() && said.value("format", json()) == "twinrun sub-files") remove(index);
            }
        });
    }

    Measurement measured(Entry& entry, bool reading) {
        Method& method = *entry.method;
        const FileGroup group = method.group();
        const std::string file = file_path(entry.path, group);
        Measurement result;
        result.method = entry.choice.label;
        result.operation = reading ? "read" : "write";
        result.bytes = total_ * kParticleBytes;
        if (reading) {
            if (method.stores()) particles_->poison();
            if (options_.cold && method.has_file()) {
                double resident = 0;
                together(world_, [&] {
                    if (entry.keeper) resident = PosixFile(file, PosixFile::Mode::read).drop_cache();
                });
                result.resident = largest(world_, resident);
            }
        } else {
            remove_files(entry);
        }

        std::optional<std::string> failure;
        MPI_Barrier(world_);
        const Clock::Time start = Clock::now();
        const auto epoch = std::chrono::system_clock::now().time_since_epoch();
        result.begin = std::chrono::duration<double>(epoch).count();
        Stopwatch watch;
        try {
            if (options_.declare_each && entry.choice.name == "aggregate") {
                method.declare();
                watch.lap("declare");
            }
            const std::string& path = method.prefix_path() ? entry.path : file;
            if (reading) {
                method.read(path, watch);
            } else {
                method.write(path, watch);
            }
        } catch (const Failure& caught) {
            failure = caught.what();
        }
        const Clock::Time end = Clock::now();
        agree(world_, failure ? entry.choice.label + ": " + *failure : failure);
        result.seconds = clock_.span(start, end);
        for (const auto& [phase, value] : watch.phases())
            result.phases.emplace_back(phase, largest(world_, value));

        if (!reading && options_.sync == Sync::after && method.has_file()) {
            MPI_Barrier(world_);
            const Clock::Time sync_start = Clock::now();
            Clock::Time sync_end = sync_start;
            together(world_, [&] {
                if (!entry.keeper) return;
                PosixFile(file, PosixFile::Mode::write).sync();
                sync_end = Clock::now();
            });
            result.sync_seconds = clock_.span(sync_start, sync_end);
        }
        if (options_.verify && method.stores()) {
            const std::string complaint =
                reading ? complaint_of_values(file) : complaint_of_file(file, group);
            result.verified = report(entry.choice.label, result.operation, complaint);
        }
        if (reading && method.stores()) particles_->fill();
        return result;
    }

    // What is wrong with the values that a method read; nothing: empty.
    std::string complaint_of_values(const std::string& file) {
        const Check check = particles_->check();
        if (check.wrong == 0) return {};
        return text(*check.first) + "; " + wrong_values(check.wrong) + ", as read from " + file;
    }

    // The file, by plain reads that know the layout alone. [collective over the group]
    std::string complaint_of_file(const std::string& path, const FileGroup& group) {
        const Share share = share_of(group, particles_->count());
        const std::array<Place, kVariables> at = places(options_.layout, share);
        Check check;
        try {
            PosixFile file(path, PosixFile::Mode::read);
            const std::uint64_t expected = share.total * kParticleBytes;
            if (group.rank == 0 && file.size() != expected)
                return path + ": " + std::to_string(file.size()) + " bytes instead of " +
                       std::to_string(expected);
            std::vector<std::byte> bytes;
            for (std::uint64_t first = 0; first < share.count; first += kVerifiedPiece) {
                const std::uint64_t items = std::min(kVerifiedPiece, share.count - first);
                if (options_.layout == Layout::records) {
                    bytes.resize(items * kParticleBytes);
                    file.read(bytes, at[0].offset + first * kParticleBytes);
                }
                for (std::size_t v = 0; v < kVariables; ++v) {
                    std::span<const std::byte> values(bytes);
                    if (options_.layout == Layout::records) {
                        values = values.subspan(kVariable[v].record_offset);
                    } else {
                        bytes.resize(items * kVariable[v].bytes);
                        file.read(bytes, at[v].offset + first * at[v].stride);
                        values = bytes;
                    }
                    check.add(check_values(values, at[v].stride, static_cast<std::uint64_t>(rank_), first,
                                           items, v));
                }
            }
        } catch (const Failure& failure) {
            return failure.what();
        }
        if (check.wrong == 0) return {};
        const std::uint64_t byte =
            at[check.first->variable].offset + check.first->index * at[check.first->variable].stride;
        return text(*check.first) + "; " + wrong_values(check.wrong) + ", the first at byte " +
               std::to_string(byte) + " of " + path;
    }

    // [collective] Reports what is wrong. Returns whether nothing is.
    bool report(const std::string& label, const std::string& operation, const std::string& complaint) {
        const int mine = complaint.empty() ? 0 : 1;
        int any = 0;
        MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, world_);
        if (any == 0) return true;
        wrong_ = true;
        const std::vector<std::string> complaints = gather_texts(world_, complaint);
        std::size_t shown = 0, more = 0;
        for (std::size_t i = 0; i < complaints.size(); ++i) {
            if (complaints[i].empty()) continue;
            if (shown++ < kComplaintsShown) {
                std::fprintf(stderr, "haccio: %s, %s: rank %zu, %s\n", label.c_str(), operation.c_str(), i,
                             complaints[i].c_str());
            } else {
                ++more;
            }
        }
        if (more > 0)
            std::fprintf(stderr, "haccio: %s, %s: and %zu more ranks\n", label.c_str(), operation.c_str(),
                         more);
        return false;
    }

    void finish() {
        for (Entry& entry : entries_) {
            // What a method has to say is JSON, if anything.
            const std::string details = entry.method->details();
            together(world_, [&] {
                if (rank_ != 0 || details.empty()) return;
                json parsed = json::parse(details, nullptr, false);
                if (parsed.is_discarded())
                    throw Failure(entry.choice.label + ": its report is not JSON: " + details);
                results_->line(
                    {{"kind", "details"}, {"method", entry.choice.label}, {"details", std::move(parsed)}});
            });
            if (!options_.keep && options_.write) remove_files(entry);
        }
        together(world_, [&] {
            if (rank_ != 0) return;
            results_->summarise(options_.quiet);
            if (!options_.quiet && options_.json != "-" && options_.verify)
                std::printf(wrong_ ? "verified: wrong values, see above\n" : "verified: every value\n");
            if (std::fflush(stdout) != 0) throw Failure("standard output cannot be written");
        });
    }

    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    const Options& options_;
    MPI_Comm world_;
    Clock clock_;
    int rank_ = 0, ranks_ = 1;
    std::uint64_t total_ = 0;
    std::unique_ptr<Particles> particles_;
    std::unique_ptr<Results> results_;
    std::vector<Entry> entries_;
    std::string library_;
    bool wrong_ = false;
};

}  // namespace

int run_job(const Options& options, MPI_Comm world) { return Job(options, world).run(); }

}  // namespace haccio

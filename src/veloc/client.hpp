// The state behind VELOC's functions. A name of checkpoints is a history, a version a step, a
// region a field.
//
// VELOC reports an error of one rank to that rank only. Here ranks agree first: so a failed rank
// does not leave the others waiting, and a checkpoint counts only if all ranks have it.
#pragma once

#include <twinrun/mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "veloc/config.hpp"
#include "veloc/files.hpp"

namespace twinrun::veloc {

struct Region {
    void* data = nullptr;
    std::uint64_t bytes = 0;
    RegionRule rule;
};
using Regions = std::map<int, Region>;

struct Copy {
    std::vector<std::byte> bytes;
    bool taken = false;  // for the current checkpoint
};

enum class Phase { none, checkpoint, restart };

// Used by one thread at a time. Functions throw a Failure. Those marked [collective] are called by
// all ranks, and fail on all or none.
class Client {
   public:
    // comm: a communicator that only this client uses; MPI_COMM_NULL for a single process, which
    // `id` distinguishes from others.
    Client(Config config, MPI_Comm comm, unsigned id);
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    void make_folders();
    void note_unknown_keys(const std::string& file);

    // [collective] Checks that all ranks succeeded so far and passed the same arguments; throws
    // otherwise. problem: this rank's error, which also goes to its log. elsewhere: the text for
    // ranks without an error.
    void agree(
        const std::optional<std::string>& problem, const std::string& name = "", std::int64_t version = 0,
        const char* elsewhere = "another rank failed, and its message says why: nothing was done on any");

    void protect(int id, void* data, std::size_t count, std::size_t base, const char* group);
    void unprotect(int id, const char* group);
    void clear(const char* group) { groups_.erase(group_name(group)); }

    void begin_checkpoint(const char* name, int version);
    void copy(int mode, const int* ids, int count);
    void end_checkpoint(bool success);               // [collective]
    void checkpoint(const char* name, int version);  // [collective]
    void wait();                                     // [collective]
    [[nodiscard]] bool finished();

    int newest(const char* name, int not_after);        // [collective]
    void begin_restart(const char* name, int version);  // [collective]
    int saved_bytes(int id);
    void recover(int mode, const int* ids, int count);
    void end_restart(bool success);               // [collective]
    void restart(const char* name, int version);  // [collective]

    void route(const char* original, char* routed);
    void clean(const char* name);  // [collective]

    // [collective] Ends all histories. Throws afterwards if a checkpoint was lost.
    void close();

    [[nodiscard]] MPI_Comm comm() const { return comm_; }
    // The name of the current function, for the log.
    void enter(const char* function) { function_ = function; }
    // Writes a line to the log, if there is one. Lines of several ranks do not mix.
    void note(const std::string& line) const;

   private:
    struct Run {
        twr_run* handle = nullptr;
        bool pending = false;  // captured since the last wait
    };

    [[nodiscard]] bool collective() const { return comm_ != MPI_COMM_NULL; }

    template <class Work>
    static std::optional<std::string> caught(Work work) {
        try {
            work();
        } catch (const Failure& failure) {
            return failure.message;
        } catch (const std::exception& e) {
            return e.what();
        }
        return std::nullopt;
    }

    static std::string group_name(const char* group);
    static void check_name(const char* name, int version);

    // Regions of the current checkpoint: those protected for its name; if there are none, those
    // without a name.
    [[nodiscard]] std::string group() const;
    Regions& regions() { return groups_[group()]; }
    std::vector<int> select(int mode, const int* ids, int count);

    void start(Phase phase, const std::string& name, int version);
    // Leaves the phase, and discards what was begun and not committed.
    void finish();
    twr_run* restarting();
    [[nodiscard]] bool any_copy() const;
    void check_protected(twr_run* run, int mode, const int* ids, int count, const std::vector<int>& selected);
    static void offer(twr_run* run, const Region& region, void* data, std::uint64_t bytes);
    // [collective] Captures the current checkpoint as a step. problem: why this rank cannot.
    void commit(std::optional<std::string> problem);

    // Copies the routed file to the name that the application gave, in a thread: as VELOC's backend
    // does.
    void copy_out();
    // Waits for the copy; returns its error, once.
    std::string copier_result();

    [[nodiscard]] std::string folder(const std::string& name) const;
    [[nodiscard]] std::string history(const std::string& name) const;
    // The folder where steps are written first; empty: steps are on persistent storage when the
    // call returns.
    [[nodiscard]] std::string local(const std::string& name) const;
    [[nodiscard]] std::string routed_stem(const std::string& name) const;
    [[nodiscard]] std::string routed_path(const std::string& name, int version) const;

    // The begin of names of routed files in scratch; routed_path() decides whether a name is one.
    [[nodiscard]] std::optional<int> routed_version(const std::string& name, const std::string& file) const;

    // [collective] Whether there is a history of this name: so that a question does not create one.
    bool anywhere(const std::string& name);
    Run& opened(const std::string& name);  // [collective]
    // [collective] A checkpoint under way counts as soon as it is complete.
    static void settle(Run& run);

    Config config_;
    const char* function_ = "";
    MPI_Comm comm_;
    unsigned id_;
    std::map<std::string, Regions> groups_;
    // Ordered, so that all ranks wait for them and close them in the same order.
    std::map<std::string, Run> runs_;
    Phase phase_ = Phase::none;
    std::string name_;
    int version_ = 0;
    std::map<int, Copy> copies_;  // kept between checkpoints, to reuse their memory
    std::set<int> direct_;        // regions that are captured without a copy
    std::string routed_;
    std::string original_;
    std::thread copier_;
    std::string copied_;
    std::string copier_problem_;  // read only after join
    std::atomic<bool> copying_ = false;
};

}  // namespace twinrun::veloc

// One write or read of a plan's data: what each rank does between the opening of the file and the
// agreement that all is there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregate/mpi/plan.hpp"
#include "aggregate/mpi/storage.hpp"
#include "aggregate/mpi/team.hpp"

namespace twinrun::aggregation {

// The work of this rank.
struct Work {
    double shared_bytes = 0;  // copied from or to buffers of its node
    double remote_bytes = 0;  // put to or got from other nodes
    double direct_bytes = 0;  // written or read by itself
    double windows = 0;       // of its partitions, as an aggregator
    double gather_seconds = 0;
    double direct_seconds = 0;
    double storage_seconds = 0;  // of jobs
    double wait_seconds = 0;
};

// Writing, of a window with n buffers:
//     aggregator: ready = n; for each window: wait until all of its ranks are done with it; start
//                 its write; when it has ended, ready += 1
//     rank:       for each window with its data: wait until ready; copy or put the data; notify the
//                 aggregator
// Reading, for each window: the aggregator reads it; ready += 1; ranks copy or get, and notify; the
// buffer is free again. Between nodes, "ready" and "done" are messages.
class Pipeline {
   public:
    // data: a pointer for each variable; only read from when writing.
    Pipeline(Team& team, const Settings& settings, const FileGroup& group, const Plan& plan, Mode mode,
             void* const* data);
    ~Pipeline();
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    // This rank's items, where they lie elsewhere in memory than the plan says: the same places in
    // the file. Call it before prepare().
    void use(const std::vector<RankSet>* sets) { sets_ = sets; }

    // Call it before ranks agree to begin: allocates, and sets the state that other ranks of the
    // node read.
    Result<> prepare();
    // Moves the data through a file that is open already, in place of one that run() opens. Call it
    // before run().
    void use(const OpenFile* file) { file_ = file; }
    // Reads from these files in place of one. Call it before run().
    void use(const SubFiles* files) { files_ = files; }
    // A small write of ranks of one node may take one step less: before the ranks agree, each puts
    // its bytes into the aggregator's buffer. Then the rank that leads the node writes them all.
    // Whether this rank has done so. Call it after prepare().
    [[nodiscard]] bool deposit();
    // The second part, by the node's leader, where all ranks have deposited theirs.
    Result<> store();
    // Moves the data. After a failure of storage it still goes through all windows, because other
    // ranks wait for them, and returns the error at the end. A broken team ends it at once.
    Result<> run(const std::string& path);
    // Brings what this rank wrote to storage (fsync).
    Result<> sync();
    Result<> close();
    [[nodiscard]] const Work& work() const { return work_; }

   private:
    struct Role;     // this rank's part in a partition
    struct Message;  // between nodes
    struct Sent;
    struct PackedPart;

    [[nodiscard]] const std::vector<RankSet>& sets() const {
        return sets_ != nullptr ? *sets_ : plan_.sets();
    }
    [[nodiscard]] bool writing() const { return mode_ == Mode::write; }
    Storage* storage();  // null if it cannot be opened
    void fail(Error error);
    // Calls body, which may allocate. An exception becomes this rank's error; the rank goes on with
    // what the others wait for.
    template <class Body>
    bool attempt(Body&& body);

    Result<> run_all();
    bool step();
    bool step_member(Role& role);
    bool step_aggregator(Role& role);
    bool step_direct();
    bool receive();
    void send(int rank, std::uint32_t kind, std::uint32_t partition, std::uint64_t window);

    void open_window(Role& role, std::uint64_t window);  // lets its ranks work on it
    [[nodiscard]] bool window_done(const Role& role, std::uint64_t window) const;
    [[nodiscard]] std::vector<Piece> pieces_of(const Role& role, std::uint64_t window) const;
    void start_job(Role& role, std::uint64_t window);
    void move_local(const Role& role, std::uint64_t window);
    void move_remote(const Role& role, std::uint64_t window);
    void transfer(int target, MPI_Aint at, std::byte* bytes, std::uint64_t width, std::uint64_t count,
                  std::uint64_t stride);
    [[nodiscard]] std::vector<Range> own_parts(Range range) const;
    void move_direct(Range range);

    Team& team_;
    const Settings& settings_;
    const FileGroup& group_;
    const Plan& plan_;
    Mode mode_;
    void* const* data_;
    std::string path_;
    std::uint64_t buffers_;
    std::vector<Role> roles_;
    std::vector<int> role_of_;   // of each partition; -1: none
    bool remote_ = false;        // exchanges messages with other nodes
    bool one_job_ = false;       // has nothing to do while a window is written or read
    std::size_t direct_at_ = 0;  // the current direct range, and its bytes that are done
    std::uint64_t direct_done_ = 0;
    std::vector<std::byte> scratch_;
    const OpenFile* file_ = nullptr;
    const SubFiles* files_ = nullptr;
    const std::vector<RankSet>* sets_ = nullptr;
    std::unique_ptr<Storage> storage_;
    bool tried_ = false;
    std::optional<Error> error_;
    // Allocated once for all messages, because MPI has their addresses.
    std::unique_ptr<Sent[]> sent_;
    std::size_t sent_count_ = 0;
    std::size_t taken_ = 0;  // number of these, in order, that have arrived
    Work work_;
};

}  // namespace twinrun::aggregation

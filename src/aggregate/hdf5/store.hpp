// The file or the sub-files under a name, as one process has them open. No MPI: rank 0 prepares
// them, and the other ranks follow.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregate/hdf5/config.hpp"
#include "aggregate/mpi/index.hpp"
#include "aggregate/mpi/storage.hpp"
#include "aggregate/mpi/stripes.hpp"
#include "base/result.hpp"

namespace twinrun::hdf5 {

// What rank 0 has found or made. The others must find the same.
struct Facts {
    StripeCut stripes;
    std::uint64_t bytes = 0;     // of the whole file
    std::uint64_t identity = 0;  // a hash of the files' inodes
    bool several = false;        // sub-files
    // The index that is there, by its inode and time; 0: none.
    std::uint64_t index_inode = 0;
    std::int64_t index_time = 0;
};

enum class Lock : std::uint8_t {
    none,
    probe,  // before a file is truncated: is it free?
    keep,   // until it is closed
};

class Store {
   public:
    Store() = default;
    ~Store();
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    // Opens what is there; or makes and truncates it, as flags (H5F_ACC_...) say.
    // Errors: it is no regular file, somebody else has it open, sub-files without a good index,
    // files in the way that nothing shows to be sub-files.
    Result<> prepare(const std::string& path, unsigned flags, const Config& config, Lock lock);
    // Opens what rank 0 has prepared.
    Result<> follow(const std::string& path, unsigned flags, const Facts& facts);
    // After an error of another rank: removes the sub-files that this object has made.
    void abandon();
    // Removes the file, or the sub-files and their index. Errors: files that the index does not
    // identify; then nothing is removed.
    static Result<> remove(const std::string& path);

    [[nodiscard]] const Facts& facts() const { return facts_; }
    [[nodiscard]] const aggregation::StripedFiles& files() const { return files_; }
    // Of this process alone.
    Result<> write(std::span<const aggregation::Piece> pieces);
    Result<> read(std::span<const aggregation::Piece> pieces) const { return reader_.transfer(pieces); }
    // Before the first write since the index was written, by whichever process: an index is of
    // complete files only.
    Result<> begin_writing();
    // By one process, when the others do not write.
    Result<> set_size(std::uint64_t bytes);
    Result<> write_index(std::uint64_t bytes);
    // An index was written, by whichever process.
    void note_index(std::uint64_t inode, std::int64_t time);
    [[nodiscard]] Result<> sync() const { return writer_.sync(); }
    // Errors: somebody else has it open.
    Result<> lock(bool for_writing) const;
    void unlock() const;
    // The first file, which stands for all.
    [[nodiscard]] std::optional<struct stat> identity() const;

   private:
    Result<> open_one(int flags);
    Result<> open_set(const aggregation::Index& index, int flags, std::uint64_t likely);
    Result<> make_set(const Config& config, const std::optional<aggregation::Index>& old);
    Result<> add(const std::string& name, int flags);
    Result<> ready();

    std::string path_;
    Facts facts_;
    bool made_ = false;
    aggregation::StripedFiles files_;
    aggregation::DescriptorsOfStripes reader_;
    aggregation::DescriptorsOfStripes writer_;
};

}  // namespace twinrun::hdf5

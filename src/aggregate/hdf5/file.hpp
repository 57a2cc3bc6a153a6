// A file that HDF5 has open by this driver: its ranks, its files on disk, its addresses.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "aggregate/hdf5/abi.hpp"
#include "aggregate/hdf5/collective.hpp"
#include "aggregate/hdf5/config.hpp"
#include "aggregate/hdf5/library.hpp"
#include "aggregate/hdf5/store.hpp"
#include "base/result.hpp"

namespace twinrun::hdf5 {

// One transfer as HDF5 asks for it.
struct Request {
    Mode mode = Mode::read;
    std::vector<Piece> pieces;
    // HDF5's drivers read single pieces of metadata alone, also during a collective transfer.
    bool alone = false;
    // False: if the transfer is collective, its bytes are `count` items of a type of MPI, and HDF5
    // has the types. `pieces` counts otherwise.
    bool whole = true;
    haddr_t at = 0;
    std::byte* buffer = nullptr;
    std::size_t count = 0;
};

// The ranks of a file: of the property list, or this process alone.
struct Ranks {
    MPI_Comm comm = MPI_COMM_NULL;  // null: this process alone. Ours to free
    MPI_Info info = MPI_INFO_NULL;
    int rank = 0;
    int count = 1;
    Ranks() = default;
    ~Ranks();
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    // config: of the property list. [collective] where it has a communicator.
    Result<> find(const Library& library, hid_t fapl, Config& config);
    [[nodiscard]] bool several() const { return comm != MPI_COMM_NULL; }
    // Where a rank is lost, freeing a communicator would wait for it.
    void leave() { comm = MPI_COMM_NULL; }
    // [collective] All ranks have success, or all an error: that of the lowest rank that failed.
    [[nodiscard]] Result<> all_of(const Result<>& mine) const;
};

class File {
   public:
    // [collective], as all of these but read(), write() and what only answers.
    static Result<std::unique_ptr<File>> open(const Library& library, const char* name, unsigned flags,
                                              hid_t fapl);
    static Result<> remove(const Library& library, const char* name, hid_t fapl);
    Result<> close();
    // Collective where HDF5 says that the transfer is.
    Result<> transfer(Request request);
    Result<> truncate(bool closing);
    Result<> flush(bool closing);
    Result<> lock(bool for_writing) const { return store_.lock(for_writing); }
    void unlock() const { store_.unlock(); }

    [[nodiscard]] const Library& library() const { return library_; }
    [[nodiscard]] const Ranks& ranks() const { return ranks_; }
    [[nodiscard]] const Store& store() const { return store_; }
    [[nodiscard]] haddr_t eoa() const { return eoa_; }
    void set_eoa(haddr_t eoa) { eoa_ = eoa; }
    [[nodiscard]] haddr_t eof() const { return eof_; }

   private:
    File(const Library& library, std::string name) : library_(library), name_(std::move(name)) {}
    [[nodiscard]] Result<bool> collective(const Request& request, MPI_Datatype& memory,
                                          MPI_Datatype& places) const;
    Result<aggregation::Outcome> agree(Result<> mine,
                                       std::function<Result<>(aggregation::Outcome&)> by_one = {});

    const Library& library_;
    std::string name_;
    Ranks ranks_;
    Config config_;
    Store store_;
    std::unique_ptr<Collective> collective_;  // where there are several ranks
    bool writes_ = false;
    bool complete_ = false;         // HDF5 has written all that it will write
    Result<> written_ = success();  // the first error of a write
    haddr_t eoa_ = 0;
    haddr_t eof_ = 0;
    haddr_t last_eoa_ = 0;
};

}  // namespace twinrun::hdf5

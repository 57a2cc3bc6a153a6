#include "aggregate/hdf5/file.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "aggregate/mpi/datatype.hpp"
#include "base/caught.hpp"

namespace twinrun::hdf5 {

using aggregation::Outcome;

namespace {

bool mpi_runs() {
    int begun = 0;
    int ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    return begun != 0 && ended == 0;
}

std::string config_text(const Library& library, hid_t fapl) {
    const ssize_t length = library.driver_config(fapl, nullptr, 0);
    if (length <= 0) return {};
    std::string text(static_cast<std::size_t>(length) + 1, '\0');
    if (library.driver_config(fapl, text.data(), text.size()) < 0) return {};
    text.resize(std::strlen(text.c_str()));
    return text;
}

// The program may change its folder while the file is open.
std::string absolute(const char* name) {
    std::error_code failed;
    const std::filesystem::path path = std::filesystem::absolute(name, failed);
    return failed ? std::string(name) : path.string();
}

// Whether HDF5 and its user want files locked. The environment decides, as in HDF5.
bool locking_asked(const Library& library, hid_t fapl) {
    if (const char* const given = std::getenv("HDF5_USE_FILE_LOCKING")) {
        if (std::strcmp(given, "FALSE") == 0 || std::strcmp(given, "0") == 0) return false;
        if (std::strcmp(given, "TRUE") == 0 || std::strcmp(given, "1") == 0 ||
            std::strcmp(given, "BEST_EFFORT") == 0)
            return true;
    }
    bool use = true;
    bool ignore = false;
    if (library.file_locking == nullptr || library.file_locking(fapl, &use, &ignore) < 0) return true;
    return use;
}

// Parts for aggregation, or the pieces as they are where they overlap or are too many.
Part part_of_pieces(Mode mode, std::vector<Piece> pieces) {
    Part part;
    part.mode = mode;
    std::erase_if(pieces, [](const Piece& piece) { return piece.count == 0; });
    if (pieces.empty()) return part;
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    part.base = pieces.front().bytes;
    const auto base = reinterpret_cast<std::intptr_t>(part.base);
    const auto cut = [&]() -> Result<> {
        Stream file;
        Stream memory;
        for (const Piece& piece : pieces) {
            const auto width = static_cast<std::int64_t>(piece.count);
            TWR_CHECK(file.append({static_cast<std::int64_t>(piece.offset), piece.count, 1, width}));
            TWR_CHECK(
                memory.append({reinterpret_cast<std::intptr_t>(piece.bytes) - base, piece.count, 1, width}));
        }
        return match(file, memory, 0, part.parts);
    };
    if (auto done = cut(); !done) {
        part.parts.clear();
        part.pieces = std::move(pieces);
    }
    return part;
}

Result<Part> part_of_types(const Request& request, MPI_Datatype memory_type, MPI_Datatype file_type) {
    Part part;
    part.mode = request.mode;
    part.base = request.buffer;
    TWR_TRY(const aggregation::TypeStream type, aggregation::stream_of(memory_type));
    TWR_TRY(const Stream memory, aggregation::stream_of_items(type, request.count));
    if (memory.bytes() == 0) return part;
    TWR_TRY(const aggregation::TypeStream places, aggregation::stream_of(file_type));
    if (places.stream.bytes() == 0)
        return Error{ErrorCode::invalid_argument, "a file type of no bytes, and a memory type of some"};
    TWR_TRY(const Stream file, slice_of_tiles(places.stream, places.extent,
                                              static_cast<std::int64_t>(request.at), 0, memory.bytes()));
    TWR_CHECK(match(file, memory, 0, part.parts));
    return part;
}

}  // namespace

// ---- ranks ----

Ranks::~Ranks() {
    if (!mpi_runs()) return;
    if (comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
    if (info != MPI_INFO_NULL) MPI_Info_free(&info);
}

Result<> Ranks::all_of(const Result<>& mine) const {
    if (!several()) return mine;
    int lowest = mine ? count : rank;
    TWR_MPI("MPI_Allreduce", MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, comm));
    if (lowest == count) return success();
    std::array<char, 2048> text{};
    if (lowest == rank) std::strncpy(text.data(), mine.error().message.c_str(), text.size() - 1);
    TWR_MPI("MPI_Bcast", MPI_Bcast(text.data(), static_cast<int>(text.size()), MPI_CHAR, lowest, comm));
    if (!mine) return mine;
    return Error{ErrorCode::other_rank, "rank " + std::to_string(lowest) + ": " + text.data()};
}

Result<> Ranks::find(const Library& library, hid_t fapl, Config& config) {
    TWR_CHECK(fit_for_mpi(library));
    if (library.parallel() && library.mpi_params(fapl, &comm, &info) < 0) {
        comm = MPI_COMM_NULL;
        info = MPI_INFO_NULL;
    }
    auto read = caught([&] { return config_of(config_text(library, fapl), info); });
    if (read && read->world && comm == MPI_COMM_NULL && mpi_runs()) {
        if (!library.parallel()) {
            return Error{
                ErrorCode::unsupported,
                library.path + ": communicator = world needs a parallel HDF5, and this one is serial"};
        }
        TWR_MPI("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    }
    if (!several()) {
        TWR_TRY(config, std::move(read));
        return success();
    }
    Result<> mine = fit_for_ranks(library);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &count);
    if (info == MPI_INFO_NULL) MPI_Info_create(&info);  // HDF5 asks for one
    if (mine && !read) mine = read.error();
    TWR_CHECK(all_of(mine));
    config = std::move(*read);
    std::uint64_t hashes[2] = {hash_of(config), ~hash_of(config)};
    TWR_MPI("MPI_Allreduce", MPI_Allreduce(MPI_IN_PLACE, hashes, 2, MPI_UINT64_T, MPI_MAX, comm));
    if (hashes[0] != ~hashes[1]) {
        return Error{
            ErrorCode::mismatch,
            "the driver's configuration or the hints twinrun_* differ between ranks: give all the same"};
    }
    return success();
}

// ---- opening and closing ----

Result<std::unique_ptr<File>> File::open(const Library& library, const char* name, unsigned flags,
                                         hid_t fapl) {
    const std::string path = absolute(name);
    std::unique_ptr<File> file(new File(library, path));
    File& f = *file;
    TWR_CHECK(f.ranks_.find(library, fapl, f.config_));
    f.writes_ = (flags & kReadWrite) != 0;
    const bool keeps = library.parallel();  // its class has no lock of HDF5's
    const Lock lock = !locking_asked(library, fapl) ? Lock::none : keeps ? Lock::keep : Lock::probe;
    Result<> mine = success();
    if (f.ranks_.rank == 0) mine = caught([&] { return f.store_.prepare(path, flags, f.config_, lock); });
    if (auto all = f.ranks_.all_of(mine); !all) {
        f.store_.abandon();
        return std::move(all).error();
    }
    if (f.ranks_.several()) {
        Facts facts = f.store_.facts();
        TWR_MPI("MPI_Bcast", MPI_Bcast(&facts, sizeof facts, MPI_BYTE, 0, f.ranks_.comm));
        if (f.ranks_.rank != 0) mine = caught([&] { return f.store_.follow(path, flags, facts); });
        if (auto all = f.ranks_.all_of(mine); !all) {
            f.store_.abandon();
            return std::move(all).error();
        }
        f.collective_ = std::make_unique<Collective>(f.ranks_.comm, f.config_, f.name_);
    }
    f.eof_ = f.store_.facts().bytes;
    return file;
}

Result<> File::remove(const Library& library, const char* name, hid_t fapl) {
    Ranks ranks;
    Config config;
    TWR_CHECK(ranks.find(library, fapl, config));
    // Nobody is in the file any more.
    TWR_CHECK(ranks.all_of(success()));
    Result<> mine = success();
    if (ranks.rank == 0) mine = caught([&] { return Store::remove(name); });
    return ranks.all_of(mine);
}

Result<> File::close() {
    Result<> done = success();
    if (complete_ && store_.facts().several) {
        const auto finish = [&](Outcome&) { return store_.write_index(last_eoa_); };
        auto agreed = agree(written_, finish);
        if (!agreed) done = std::move(agreed).error();
    }
    if (collective_ && collective_->broken()) ranks_.leave();
    collective_.reset();
    return done;
}

// With one process: what the agreement of all would do.
Result<Outcome> File::agree(Result<> mine, std::function<Result<>(Outcome&)> by_one) {
    if (collective_) return collective_->agree(std::move(mine), std::move(by_one));
    TWR_CHECK(mine);
    Outcome outcome;
    if (by_one) TWR_CHECK(caught([&] { return by_one(outcome); }));
    return outcome;
}

Result<> File::truncate(bool closing) {
    if (!writes_) return success();
    if (eoa_ != last_eoa_) {
        TWR_CHECK(agree(success(), [&](Outcome&) { return store_.set_size(eoa_); }));
        last_eoa_ = eoa_;
        if (!ranks_.several()) eof_ = eoa_;
    }
    complete_ = complete_ || closing;
    return success();
}

Result<> File::flush(bool closing) {
    if (!writes_ || closing) return success();  // close() does it
    Result<> mine = written_;
    if (mine && ranks_.several()) mine = caught([&] { return store_.sync(); });
    if (!store_.facts().several && !ranks_.several()) return mine;
    TWR_TRY(const Outcome outcome, agree(std::move(mine), [&](Outcome& told) -> Result<> {
                if (last_eoa_ != eoa_) return success();  // no state that can be read
                TWR_CHECK(store_.write_index(eoa_));
                told.payload[0] = store_.facts().index_inode;
                told.payload[1] = static_cast<std::uint64_t>(store_.facts().index_time);
                return success();
            }));
    if (outcome.payload[0] != 0)
        store_.note_index(outcome.payload[0], static_cast<std::int64_t>(outcome.payload[1]));
    return success();
}

// ---- transfers ----

// Whether HDF5 makes all ranks call, for one transfer; the types are those of all their bytes.
Result<bool> File::collective(const Request& request, MPI_Datatype& memory, MPI_Datatype& places) const {
    if (!ranks_.several() || request.alone) return false;
    int mode = 0;
    if (library_.transfer_mode(&mode) < 0)
        return Error{ErrorCode::internal, "HDF5 does not say whether the transfer is collective"};
    if (mode != kCollective) return false;
    if (!request.whole && library_.collective_types(&memory, &places) < 0)
        return Error{ErrorCode::internal, "HDF5 does not say which types the transfer has"};
    return true;
}

Result<> File::transfer(Request request) {
    MPI_Datatype memory = MPI_BYTE;
    MPI_Datatype places = MPI_BYTE;
    TWR_TRY(const bool all, collective(request, memory, places));
    Result<> done = success();
    haddr_t end = 0;
    for (const Piece& piece : request.pieces)
        end = std::max(end, piece.offset + piece.count);
    if (!all) {
        done = request.mode == Mode::write ? store_.write(request.pieces) : store_.read(request.pieces);
    } else {
        int option = kCollectiveTransfer;
        if (library_.collective_option(&option) < 0) option = kCollectiveTransfer;
        Part part;
        part.mode = request.mode;
        auto made = caught([&]() -> Result<Part> {
            if (request.whole) return part_of_pieces(request.mode, std::move(request.pieces));
            return part_of_types(request, memory, places);
        });
        if (made) {
            part = std::move(*made);
        } else {
            part.checked = std::move(made).error();
        }
        if (!part.parts.empty()) end = std::max(end, part.parts.back().where.end());
        if (option == kCollectiveTransfer) {
            done = collective_->move(store_, part);
        } else {
            done = part.checked ? move_alone(store_, part) : part.checked;
        }
    }
    if (request.mode == Mode::read) return done;
    if (!done && written_) written_ = done;
    // Other ranks may have written farther: as in HDF5's own driver, nobody knows until the end.
    eof_ = ranks_.several() ? kUndefined : std::max(eof_, end);
    return done;
}

}  // namespace twinrun::hdf5

// The driver as HDF5 sees it: its class, and the two functions by which a plug-in is known.
//
// HDF5 is C: no exception passes. Errors go onto HDF5's stack.
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "aggregate/hdf5/abi.hpp"
#include "aggregate/hdf5/file.hpp"
#include "aggregate/hdf5/library.hpp"
#include "base/caught.hpp"

namespace twinrun::hdf5 {

namespace {

// HDF5 knows the front. Behind it HDF5's functions for atomic mode look for the handle of a file of
// MPI, and do not ask whose driver it is: with a null handle they fail and harm nothing. The rest
// is for members that a later HDF5 may add to the front.
struct Handle {
    Public known{};
    MPI_File no_file = MPI_FILE_NULL;
    std::byte later[256]{};
    std::unique_ptr<File> file;
};

Handle& handle_of(Public* file) { return *reinterpret_cast<Handle*>(file); }
const Handle& handle_of(const Public* file) { return *reinterpret_cast<const Handle*>(file); }
File& file_of(Public* file) { return *handle_of(file).file; }
const File& file_of(const Public* file) { return *handle_of(file).file; }

template <class Body>
herr_t answer(File& file, const hid_t* minor, Body&& body) noexcept {
    const Result<> result = caught(std::forward<Body>(body));
    if (result) return 0;
    push(file.library(), minor, result.error());
    return kFail;
}

__attribute__((noinline)) Public* open(const char* name, unsigned flags, hid_t fapl, haddr_t) {
    const Library* const library = library_at(__builtin_return_address(0));
    if (library == nullptr) return nullptr;
    auto made = caught([&]() -> Result<std::unique_ptr<Handle>> {
        if (name == nullptr || *name == '\0')
            return Error{ErrorCode::invalid_argument, "the file has no name"};
        TWR_TRY(auto file, File::open(*library, name, flags, fapl));
        auto handle = std::make_unique<Handle>();
        handle->file = std::move(file);
        return handle;
    });
    if (made) return &made->release()->known;
    push(*library, library->opening, made.error());
    return nullptr;
}

herr_t close(Public* file) {
    const std::unique_ptr<Handle> handle(&handle_of(file));
    File& own = *handle->file;
    return answer(own, own.library().closing, [&] { return own.close(); });
}

__attribute__((noinline)) herr_t remove(const char* name, hid_t fapl) {
    const Library* const library = library_at(__builtin_return_address(0));
    if (library == nullptr) return kFail;
    const auto done = caught([&] { return File::remove(*library, name, fapl); });
    if (done) return 0;
    push(*library, library->opening, done.error());
    return kFail;
}

// By the first file: the same for all handles of one set, in one order.
int compare(const Public* a, const Public* b) {
    const auto one = file_of(a).store().identity();
    const auto two = file_of(b).store().identity();
    if (!one || !two) return a == b ? 0 : a < b ? -1 : 1;
    if (one->st_dev != two->st_dev) return one->st_dev < two->st_dev ? -1 : 1;
    if (one->st_ino != two->st_ino) return one->st_ino < two->st_ino ? -1 : 1;
    return 0;
}

constexpr unsigned long kOfRanks = kAggregateMetadata | kAggregateSmallData | kHasMpi;
constexpr unsigned long kOfOne = kAggregateMetadata | kAccumulateMetadata | kDataSieve | kAggregateSmallData;

// Those of HDF5's own drivers, so that files have the same bytes.
unsigned long features(const Public* file, unsigned long unknown) {
    if (file == nullptr) return unknown | kDefaultCompatible;
    const File& own = file_of(file);
    return (own.ranks().several() ? kOfRanks : kOfOne) |
           (own.store().facts().several ? 0 : kDefaultCompatible);
}

herr_t query_parallel(const Public* file, unsigned long* to) {
    if (to != nullptr) *to = features(file, kOfRanks);
    return 0;
}

herr_t query_serial(const Public* file, unsigned long* to) {
    if (to != nullptr) *to = features(file, kOfOne);
    return 0;
}

haddr_t get_eoa(const Public* file, int) { return file_of(file).eoa(); }

herr_t set_eoa(Public* file, int, haddr_t addr) {
    file_of(file).set_eoa(addr);
    return 0;
}

haddr_t get_eof(const Public* file, int) { return file_of(file).eof(); }

herr_t get_handle(Public* file, hid_t, void** handle) {
    File& own = file_of(file);
    return answer(own, own.library().opening, [&]() -> Result<> {
        const std::vector<int>& numbers = own.store().files().numbers;
        if (own.ranks().several() || numbers.size() != 1 || handle == nullptr)
            return Error{ErrorCode::unsupported, "the driver twinrun has no handle of one file to give"};
        *handle = const_cast<int*>(numbers.data());
        return success();
    });
}

Request scalar(Mode mode, int type, haddr_t addr, std::size_t size, void* buffer) {
    Request request;
    request.mode = mode;
    request.alone = mode == Mode::read && type != kRaw;
    request.whole = false;
    request.at = addr;
    request.buffer = static_cast<std::byte*>(buffer);
    request.count = size;
    request.pieces.push_back({addr, request.buffer, size});
    return request;
}

herr_t read(Public* file, int type, hid_t, haddr_t addr, std::size_t size, void* buffer) {
    File& own = file_of(file);
    return answer(own, own.library().reading,
                  [&] { return own.transfer(scalar(Mode::read, type, addr, size, buffer)); });
}

herr_t write(Public* file, int type, hid_t, haddr_t addr, std::size_t size, const void* buffer) {
    File& own = file_of(file);
    return answer(own, own.library().writing, [&] {
        return own.transfer(scalar(Mode::write, type, addr, size, const_cast<void*>(buffer)));
    });
}

// A size of 0 means: this one and all others are as long as the one before.
Request vector(Mode mode, std::uint32_t count, const haddr_t* addrs, const std::size_t* sizes,
               const void* const* buffers) {
    Request request;
    request.mode = mode;
    request.pieces.reserve(count);
    std::size_t size = 0;
    bool same = false;
    for (std::uint32_t i = 0; i < count; ++i) {
        same = same || (i > 0 && sizes[i] == 0);
        if (!same) size = sizes[i];
        request.pieces.push_back({addrs[i], static_cast<std::byte*>(const_cast<void*>(buffers[i])), size});
    }
    return request;
}

herr_t read_vector(Public* file, hid_t, std::uint32_t count, int*, haddr_t* addrs, std::size_t* sizes,
                   void** buffers) {
    File& own = file_of(file);
    return answer(own, own.library().reading,
                  [&] { return own.transfer(vector(Mode::read, count, addrs, sizes, buffers)); });
}

herr_t write_vector(Public* file, hid_t, std::uint32_t count, int*, haddr_t* addrs, std::size_t* sizes,
                    const void** buffers) {
    File& own = file_of(file);
    return answer(own, own.library().writing,
                  [&] { return own.transfer(vector(Mode::write, count, addrs, sizes, buffers)); });
}

herr_t flush(Public* file, hid_t, bool closing) {
    File& own = file_of(file);
    return answer(own, own.library().writing, [&] { return own.flush(closing); });
}

herr_t truncate(Public* file, hid_t, bool closing) {
    File& own = file_of(file);
    return answer(own, own.library().writing, [&] { return own.truncate(closing); });
}

herr_t lock(Public* file, bool for_writing) {
    File& own = file_of(file);
    return answer(own, own.library().opening, [&] { return own.lock(for_writing); });
}

herr_t unlock(Public* file) {
    file_of(file).unlock();
    return 0;
}

// What HDF5 asks a driver of several ranks for. `output` has the address of the answer's place.
herr_t control(Public* file, std::uint64_t code, std::uint64_t flags, const void*, void** output) {
    File& own = file_of(file);
    const Ranks& ranks = own.ranks();
    if (ranks.several() && output != nullptr && *output != nullptr) {
        switch (code) {
            case kGetCommunicator: *static_cast<MPI_Comm*>(*output) = ranks.comm; return 0;
            case kGetInfo: *static_cast<MPI_Info*>(*output) = ranks.info; return 0;
            case kGetRank: *static_cast<int*>(*output) = ranks.rank; return 0;
            case kGetSize: *static_cast<int*>(*output) = ranks.count; return 0;
            default: break;
        }
    }
    // Data is seen by all ranks of a machine as soon as it is written. HDF5 gives the address of a
    // pointer here.
    if (code == kGetFileSync && output != nullptr && *output != nullptr) {
        **static_cast<bool**>(static_cast<void*>(output)) = false;
        return 0;
    }
    if ((flags & kFailIfUnknown) == 0) return 0;
    return answer(own, own.library().opening, [&]() -> Result<> {
        return Error{ErrorCode::unsupported, "the driver twinrun does not know this request of HDF5"};
    });
}

// A value of the range that HDF5 leaves to drivers that are not registered with it. Users name the
// driver.
constexpr int kValue = 496;
constexpr haddr_t kMostAddress = (haddr_t{1} << 63U) - 1;

constexpr Class base_class() {
    Class c{};
    c.version = kClassVersion;
    c.value = kValue;
    c.name = "twinrun";
    c.most = kMostAddress;
    c.open = open;
    c.close = close;
    c.get_eoa = get_eoa;
    c.set_eoa = set_eoa;
    c.get_eof = get_eof;
    c.get_handle = get_handle;
    c.read = read;
    c.write = write;
    c.flush = flush;
    c.truncate = truncate;
    c.del = remove;
    c.ctl = control;
    const int lists[kMemoryTypes] = {kSuper, kSuper, kSuper, kRaw, kRaw, kSuper, kSuper};
    for (int i = 0; i < kMemoryTypes; ++i)
        c.free_lists[i] = lists[i];
    return c;
}

// For a parallel HDF5, as its driver mpio is.
constexpr Class parallel_class() {
    Class c = base_class();
    c.close_degree = kCloseSemi;
    c.query = query_parallel;
    c.read_vector = read_vector;
    c.write_vector = write_vector;
    return c;
}

// For a serial HDF5, as its driver sec2 is.
constexpr Class serial_class() {
    Class c = base_class();
    c.close_degree = kCloseWeak;
    c.query = query_serial;
    c.cmp = compare;
    c.lock = lock;
    c.unlock = unlock;
    return c;
}

constexpr Class kParallel = parallel_class();
constexpr Class kSerial = serial_class();

}  // namespace

}  // namespace twinrun::hdf5

extern "C" {

#define TWINRUN_SHOWN __attribute__((visibility("default"), noinline))

TWINRUN_SHOWN int H5PLget_plugin_type(void) { return twinrun::hdf5::kPluginOfDriver; }

TWINRUN_SHOWN const void* H5PLget_plugin_info(void) {
    const twinrun::hdf5::Library* const library = twinrun::hdf5::library_at(__builtin_return_address(0));
    if (library == nullptr) return nullptr;
    return library->parallel() ? &twinrun::hdf5::kParallel : &twinrun::hdf5::kSerial;
}
}

// What HDF5 1.14 and later ask of a file driver, declared here so that the build needs no HDF5: the
// interface of version 1 of H5FD_class_t. HDF5 checks the version when it registers a driver.
// Functions of HDF5 are found when it loads the driver (library.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace twinrun::hdf5 {

using hid_t = std::int64_t;
using herr_t = int;
using hsize_t = std::uint64_t;
using haddr_t = std::uint64_t;

inline constexpr hid_t kDefault = 0;  // H5P_DEFAULT, H5E_DEFAULT
inline constexpr haddr_t kUndefined = ~haddr_t{0};
inline constexpr herr_t kFail = -1;

// H5F_ACC_...
inline constexpr unsigned kReadWrite = 0x01;
inline constexpr unsigned kTruncate = 0x02;
inline constexpr unsigned kExclusive = 0x04;
inline constexpr unsigned kCreate = 0x10;

// H5FD_FEAT_...
inline constexpr unsigned long kAggregateMetadata = 0x1;
inline constexpr unsigned long kAccumulateMetadata = 0x6;
inline constexpr unsigned long kDataSieve = 0x8;
inline constexpr unsigned long kAggregateSmallData = 0x10;
inline constexpr unsigned long kHasMpi = 0x100;
inline constexpr unsigned long kDefaultCompatible = 0x8000;

// H5FD_CTL_...
inline constexpr std::uint64_t kGetCommunicator = 2;
inline constexpr std::uint64_t kGetRank = 3;
inline constexpr std::uint64_t kGetSize = 4;
inline constexpr std::uint64_t kGetFileSync = 8;
inline constexpr std::uint64_t kGetInfo = 9;
inline constexpr std::uint64_t kFailIfUnknown = 1;

// H5FD_mem_t
enum Memory : int { kNoList = -1, kDefaultMemory, kSuper, kTree, kRaw, kGlobalHeap, kLocalHeap, kHeader };
inline constexpr int kMemoryTypes = 7;

// H5FD_mpio_xfer_t and H5FD_mpio_collective_opt_t
inline constexpr int kCollective = 1;
inline constexpr int kCollectiveTransfer = 0;

inline constexpr int kCloseWeak = 1;  // H5F_close_degree_t
inline constexpr int kCloseSemi = 2;

inline constexpr unsigned kClassVersion = 1;
inline constexpr int kPluginOfDriver = 2;  // H5PL_TYPE_VFD

struct Class;

// H5FD_t: what HDF5 keeps with each open file.
struct Public {
    hid_t driver;
    const Class* cls;
    unsigned long number;
    unsigned access;
    unsigned long features;
    haddr_t most;
    haddr_t base;
    hsize_t threshold;
    hsize_t alignment;
    bool paged;
};

// H5FD_class_t
struct Class {
    unsigned version;
    int value;
    const char* name;
    haddr_t most;
    int close_degree;
    herr_t (*terminate)();
    hsize_t (*sb_size)(Public*);
    herr_t (*sb_encode)(Public*, char*, unsigned char*);
    herr_t (*sb_decode)(Public*, const char*, const unsigned char*);
    std::size_t fapl_size;
    void* (*fapl_get)(Public*);
    void* (*fapl_copy)(const void*);
    herr_t (*fapl_free)(void*);
    std::size_t dxpl_size;
    void* (*dxpl_copy)(const void*);
    herr_t (*dxpl_free)(void*);
    Public* (*open)(const char* name, unsigned flags, hid_t fapl, haddr_t most);
    herr_t (*close)(Public*);
    int (*cmp)(const Public*, const Public*);
    herr_t (*query)(const Public*, unsigned long* features);
    herr_t (*get_type_map)(const Public*, int*);
    haddr_t (*alloc)(Public*, int type, hid_t dxpl, hsize_t size);
    herr_t (*free)(Public*, int type, hid_t dxpl, haddr_t addr, hsize_t size);
    haddr_t (*get_eoa)(const Public*, int type);
    herr_t (*set_eoa)(Public*, int type, haddr_t addr);
    haddr_t (*get_eof)(const Public*, int type);
    herr_t (*get_handle)(Public*, hid_t fapl, void** handle);
    herr_t (*read)(Public*, int type, hid_t dxpl, haddr_t addr, std::size_t size, void* buffer);
    herr_t (*write)(Public*, int type, hid_t dxpl, haddr_t addr, std::size_t size, const void* buffer);
    herr_t (*read_vector)(Public*, hid_t dxpl, std::uint32_t count, int* types, haddr_t* addrs,
                          std::size_t* sizes, void** buffers);
    herr_t (*write_vector)(Public*, hid_t dxpl, std::uint32_t count, int* types, haddr_t* addrs,
                           std::size_t* sizes, const void** buffers);
    herr_t (*read_selection)();   // none
    herr_t (*write_selection)();  // none
    herr_t (*flush)(Public*, hid_t dxpl, bool closing);
    herr_t (*truncate)(Public*, hid_t dxpl, bool closing);
    herr_t (*lock)(Public*, bool for_writing);
    herr_t (*unlock)(Public*);
    herr_t (*del)(const char* name, hid_t fapl);
    herr_t (*ctl)(Public*, std::uint64_t code, std::uint64_t flags, const void* input, void** output);
    int free_lists[kMemoryTypes];
};

}  // namespace twinrun::hdf5

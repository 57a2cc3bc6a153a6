// The few types of libcufile that we use, as its header cufile.h declares them: part of its binary
// interface since its version 1.0 and the same up to 1.20. tests/core/device compares them with
// that header where it is installed.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace twinrun::cufile {

// CUfileError_t: two enumerations, returned by value.
struct Error {
    int code = 0;    // CUfileOpError
    int driver = 0;  // CUresult, where code says that the driver failed
};
inline constexpr int kBaseError = 5000;             // CUFILEOP_BASE_ERR
inline constexpr int kDriverNotInitialized = 5001;  // CU_FILE_DRIVER_NOT_INITIALIZED
inline constexpr int kDriverAlreadyOpen = 5026;     // CU_FILE_DRIVER_ALREADY_OPEN

// CUfileDescr_t.
struct Descriptor {
    int type = 1;  // CU_FILE_HANDLE_TYPE_OPAQUE_FD
    union {
        int fd;
        void* handle = nullptr;
    };
    const void* operations = nullptr;
};

using Handle = void*;  // CUfileHandle_t
using DriverOpen = Error (*)();
using HandleRegister = Error (*)(Handle*, Descriptor*);
using HandleDeregister = void (*)(Handle);
using BufRegister = Error (*)(const void*, std::size_t, int);
using BufDeregister = Error (*)(const void*);
using Read = ssize_t (*)(Handle, void*, std::size_t, off_t file_offset, off_t memory_offset);

}  // namespace twinrun::cufile

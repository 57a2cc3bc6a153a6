// The little of libhwloc 2 that we use, as its header hwloc.h declares it: part of its binary
// interface since 2.0 (soname 15). The tests compare it with that header where it is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace twinrun::hwloc {

// struct hwloc_obj, as far as it is read.
struct Object {
    int type;
    char* subtype;
    unsigned os_index;
    char* name;
    std::uint64_t total_memory;
    void* attributes;
    int depth;
    unsigned logical_index;
    Object *next_cousin, *prev_cousin, *parent;
    unsigned sibling_rank;
    Object *next_sibling, *prev_sibling;
    unsigned arity;
    Object **children, *first_child, *last_child;
    int symmetric_subtree;
    unsigned memory_arity;
    Object* memory_first_child;
    unsigned io_arity;
    Object* io_first_child;
    unsigned misc_arity;
    Object* misc_first_child;
    void* cpuset;  // hwloc_bitmap_t
};

// hwloc_obj_type_t.
inline constexpr int kPackage = 1;
inline constexpr int kCore = 2;
inline constexpr int kUnit = 3;   // HWLOC_OBJ_PU
inline constexpr int kCache = 6;  // HWLOC_OBJ_L3CACHE
inline constexpr int kNuma = 13;
inline constexpr int kUnknownDepth = -1;
inline constexpr int kMultipleDepths = -2;
inline constexpr int kBindingOfProcess = 1;            // HWLOC_CPUBIND_PROCESS
inline constexpr unsigned kFirstVersion = 0x00020000;  // hwloc_get_api_version
inline constexpr unsigned kEndVersion = 0x00030000;

using Topology = void*;  // hwloc_topology_t
using Bitmap = void*;    // hwloc_bitmap_t

// hwloc's functions of these names, with hwloc_ in front.
struct Functions {
    unsigned (*get_api_version)();
    int (*topology_init)(Topology*);
    int (*topology_load)(Topology);
    void (*topology_destroy)(Topology);
    int (*topology_set_synthetic)(Topology, const char*);
    int (*topology_set_xml)(Topology, const char*);
    int (*get_type_depth)(Topology, int);
    unsigned (*get_nbobjs_by_depth)(Topology, int);
    Object* (*get_obj_by_depth)(Topology, int, unsigned);
    int (*get_cpubind)(Topology, Bitmap, int);
    Bitmap (*bitmap_alloc)();
    void (*bitmap_free)(Bitmap);
    int (*bitmap_iszero)(Bitmap);
    int (*bitmap_isincluded)(Bitmap, Bitmap);
    int (*bitmap_weight)(Bitmap);
};

}  // namespace twinrun::hwloc

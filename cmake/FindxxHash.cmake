# xxHash 0.8 or newer (the first with a stable XXH3): target xxHash::xxhash.
find_path(xxHash_INCLUDE_DIR xxhash.h)
find_library(xxHash_LIBRARY xxhash)

if(xxHash_INCLUDE_DIR)
    file(STRINGS "${xxHash_INCLUDE_DIR}/xxhash.h" version_lines REGEX "#define XXH_VERSION_(MAJOR|MINOR|RELEASE) ")
    string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*RELEASE +([0-9]+).*" "\\1.\\2.\\3" xxHash_VERSION
        "${version_lines}")
    if(xxHash_VERSION VERSION_LESS 0.8)
        set(xxHash_INCLUDE_DIR xxHash_INCLUDE_DIR-NOTFOUND)
    endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xxHash
    REQUIRED_VARS xxHash_LIBRARY xxHash_INCLUDE_DIR
    VERSION_VAR xxHash_VERSION
    REASON_FAILURE_MESSAGE "Debian and Ubuntu: apt-get install libxxhash-dev"
)
mark_as_advanced(xxHash_INCLUDE_DIR xxHash_LIBRARY)

if(xxHash_FOUND AND NOT TARGET xxHash::xxhash)
    add_library(xxHash::xxhash UNKNOWN IMPORTED)
    set_target_properties(xxHash::xxhash PROPERTIES
        IMPORTED_LOCATION "${xxHash_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${xxHash_INCLUDE_DIR}"
    )
endif()

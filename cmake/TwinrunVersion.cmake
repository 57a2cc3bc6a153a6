# Public headers and the Fortran module have the version as constants, which compilers need. They must be project()'s.
set(version_header "${PROJECT_SOURCE_DIR}/include/twinrun/status.h")
set(version_module "${PROJECT_SOURCE_DIR}/fortran/twinrun.f90")

# twinrun_check_version(<file> <line> ...): each of these must be in the file.
function(twinrun_check_version file)
    if(NOT EXISTS "${file}")  # a partial copy of the tree
        return()
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(READ "${file}" text)
    foreach(line IN LISTS ARGN)
        string(FIND "${text}" "${line}" place)
        if(place EQUAL -1)
            message(FATAL_ERROR "${file}: '${line}' is not there: the version of project() in CMakeLists.txt is "
                "${PROJECT_VERSION}. Write the same version in both")
        endif()
    endforeach()
endfunction()

twinrun_check_version("${version_header}"
    "#define TWINRUN_VERSION_MAJOR ${PROJECT_VERSION_MAJOR}\n"
    "#define TWINRUN_VERSION_MINOR ${PROJECT_VERSION_MINOR}\n"
    "#define TWINRUN_VERSION_PATCH ${PROJECT_VERSION_PATCH}\n"
    "#define TWINRUN_VERSION \"${PROJECT_VERSION}\"\n")
twinrun_check_version("${version_module}"
    "twr_version_major = ${PROJECT_VERSION_MAJOR}, twr_version_minor = ${PROJECT_VERSION_MINOR}, twr_version_patch = ${PROJECT_VERSION_PATCH}\n")

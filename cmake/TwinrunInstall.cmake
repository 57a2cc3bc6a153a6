# What `cmake --install` puts where: libraries, headers, the CMake package twinrun with its components, and pkg-config files.
# Everything is found relative to the package's own files, so that an installed folder may be moved. The Python wheel takes
# none of it (TWINRUN_BUILD_LIBRARY).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(TWINRUN_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/twinrun")
set(TWINRUN_MODULE_DIR "${CMAKE_INSTALL_INCLUDEDIR}/twinrun/fortran")  # of compiled Fortran modules

# twinrun_install_component(<component> <target>...)
# Shared libraries that find_package(twinrun COMPONENTS <component>) gives as twinrun::<their EXPORT_NAME>. What the consumer
# must find first, if anything, comes in a file twinrun-<component>Dependencies.cmake in TWINRUN_PACKAGE_DIR.
function(twinrun_install_component component)
    set_target_properties(${ARGN} PROPERTIES INSTALL_RPATH "$ORIGIN")
    install(TARGETS ${ARGN} EXPORT twinrun-${component}Targets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    install(EXPORT twinrun-${component}Targets NAMESPACE twinrun:: DESTINATION "${TWINRUN_PACKAGE_DIR}")
endfunction()

# twinrun_install_pkgconfig(<name> DESCRIPTION <text> LIBS <flags> [CFLAGS <flags>] [REQUIRES <packages>])
# "@includedir@" and its like in flags become pkg-config's variables.
function(twinrun_install_pkgconfig name)
    cmake_parse_arguments(PARSE_ARGV 1 PC "" "DESCRIPTION;LIBS;CFLAGS;REQUIRES" "")
    file(RELATIVE_PATH up "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
    string(REGEX REPLACE "/$" "" up "${up}")
    set(lines "prefix=\${pcfiledir}/${up}")
    foreach(variable IN ITEMS libdir:CMAKE_INSTALL_LIBDIR includedir:CMAKE_INSTALL_INCLUDEDIR moduledir:TWINRUN_MODULE_DIR)
        string(REPLACE ":" ";" variable "${variable}")
        list(GET variable 0 short)
        list(GET variable 1 long)
        if(IS_ABSOLUTE "${${long}}")
            string(APPEND lines "\n${short}=${${long}}")
        else()
            string(APPEND lines "\n${short}=\${prefix}/${${long}}")
        endif()
    endforeach()
    string(APPEND lines "\n\nName: ${name}\nDescription: ${PC_DESCRIPTION}\nVersion: ${PROJECT_VERSION}\n")
    foreach(field IN ITEMS Requires Libs Cflags)
        string(TOUPPER "${field}" upper)
        if(PC_${upper})
            string(REGEX REPLACE "@([a-z]+)@" "\${\\1}" value "${PC_${upper}}")
            string(APPEND lines "${field}: ${value}\n")
        endif()
    endforeach()
    file(WRITE "${PROJECT_BINARY_DIR}/pkgconfig/${name}.pc" "${lines}")
    install(FILES "${PROJECT_BINARY_DIR}/pkgconfig/${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endfunction()

# The package itself, and its base: the C interface with the headers that need nothing but it.
function(twinrun_install_package)
    twinrun_install_component(base twinrun)
    install(FILES
        "${PROJECT_SOURCE_DIR}/include/twinrun/status.h"
        "${PROJECT_SOURCE_DIR}/include/twinrun/twinrun.h"
        "${PROJECT_SOURCE_DIR}/include/twinrun/compare.h"
        "${PROJECT_SOURCE_DIR}/include/twinrun/compare.hpp"
        "${PROJECT_SOURCE_DIR}/include/twinrun/twinrun.hpp"
        "${PROJECT_SOURCE_DIR}/include/twinrun/kokkos.hpp"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/twinrun")
    # Programs to begin from, each folder with a project of its own.
    install(DIRECTORY
        "${PROJECT_SOURCE_DIR}/examples/capture" "${PROJECT_SOURCE_DIR}/examples/compare" "${PROJECT_SOURCE_DIR}/examples/veloc"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/twinrun/examples")
    twinrun_install_pkgconfig(twinrun DESCRIPTION "${PROJECT_DESCRIPTION}" LIBS "-L@libdir@ -ltwinrun" CFLAGS "-I@includedir@")
    configure_package_config_file(
        "${PROJECT_SOURCE_DIR}/cmake/twinrunConfig.cmake.in" "${PROJECT_BINARY_DIR}/twinrunConfig.cmake"
        INSTALL_DESTINATION "${TWINRUN_PACKAGE_DIR}" NO_SET_AND_CHECK_MACRO)
    # Before 1.0 a new minor version may change anything.
    write_basic_package_version_file("${PROJECT_BINARY_DIR}/twinrunConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
    install(FILES "${PROJECT_BINARY_DIR}/twinrunConfig.cmake" "${PROJECT_BINARY_DIR}/twinrunConfigVersion.cmake"
        DESTINATION "${TWINRUN_PACKAGE_DIR}")
endfunction()

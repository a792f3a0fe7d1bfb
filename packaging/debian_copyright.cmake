# Run by CPack before it packs: the file that Debian's policy wants in each package, out of the licences of the sources.
if(NOT CPACK_GENERATOR STREQUAL DEB)
  return()
endif()
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
foreach(name base64 crc32c)
  file(READ ${root}/src/third_party/${name}/LICENSE ${name})
  string(REGEX REPLACE "\n\n" "\n.\n" ${name} "${${name}}")
  string(REGEX REPLACE "\n" "\n " ${name} "${${name}}")
endforeach()
set(copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: routecap

Files: *
Copyright: The routecap authors
License: Apache-2.0
 The text is in /usr/share/common-licenses/Apache-2.0.

Files: src/third_party/blake2/*
Copyright: none, released to the public domain
License: CC0-1.0
 The text is in /usr/share/common-licenses/CC0-1.0.

Files: src/third_party/base64/*
Copyright: 2005-2007, Nick Galbreath
 2015-2018, Wojciech Muła
 2016-2017, Matthieu Darbois
 2013-2022, Alfred Klomp
License: BSD-2-Clause
 ${base64}

Files: src/third_party/crc32c/*
Copyright: 2017, The CRC32C Authors
License: BSD-3-Clause
 ${crc32c}
")
file(WRITE ${CPACK_TEMPORARY_DIRECTORY}/runtime/usr/share/doc/${CPACK_DEBIAN_RUNTIME_PACKAGE_NAME}/copyright "${copyright}")
file(WRITE ${CPACK_TEMPORARY_DIRECTORY}/development/usr/share/doc/${CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME}/copyright "${copyright}")

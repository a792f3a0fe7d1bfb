/*
 * How routecap builds crc32c 1.1.2 (of which the processor's instructions are chosen at run time),
 * and names of its own, so that a static routecap can be linked beside another crc32c. Included
 * before each file of it.
 */
#ifndef ROUTECAP_CRC32C_CONFIG_H
#define ROUTECAP_CRC32C_CONFIG_H

#define BYTE_ORDER_BIG_ENDIAN 0
#define HAVE_BUILTIN_PREFETCH 1
#if defined(__x86_64__)
#define HAVE_MM_PREFETCH 1
#define HAVE_SSE42 1
#else
#define HAVE_MM_PREFETCH 0
#define HAVE_SSE42 0
#endif
#if defined(__aarch64__)
#define HAVE_ARM64_CRC32C 1
#else
#define HAVE_ARM64_CRC32C 0
#endif
#define HAVE_STRONG_GETAUXVAL 1
#define HAVE_WEAK_GETAUXVAL 0

#define crc32c routecap_crc32c
#define crc32c_extend routecap_crc32c_extend
#define crc32c_value routecap_crc32c_value

#endif

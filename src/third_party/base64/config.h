/*
 * How routecap builds base64 0.5.2: which codecs there are, of which the processor's is chosen at run time, and names of
 * its own, so that a static routecap can be linked beside another base64. Included before each file of it.
 */
#ifndef ROUTECAP_BASE64_CONFIG_H
#define ROUTECAP_BASE64_CONFIG_H

#define BASE64_STATIC_DEFINE

#if defined(__x86_64__)
#define HAVE_SSSE3 1
#define HAVE_SSE41 1
#define HAVE_SSE42 1
#define HAVE_AVX 1
#define HAVE_AVX2 1
#define HAVE_AVX512 1
#else
#define HAVE_SSSE3 0
#define HAVE_SSE41 0
#define HAVE_SSE42 0
#define HAVE_AVX 0
#define HAVE_AVX2 0
#define HAVE_AVX512 0
#endif
#define HAVE_NEON32 0
#if defined(__aarch64__)
#define HAVE_NEON64 1
#define BASE64_WITH_NEON64 1
#else
#define HAVE_NEON64 0
#endif

#define ROUTECAP_BASE64(name) routecap_internal_##name
#define base64_encode ROUTECAP_BASE64(base64_encode)
#define base64_decode ROUTECAP_BASE64(base64_decode)
#define base64_stream_encode_init ROUTECAP_BASE64(base64_stream_encode_init)
#define base64_stream_encode ROUTECAP_BASE64(base64_stream_encode)
#define base64_stream_encode_final ROUTECAP_BASE64(base64_stream_encode_final)
#define base64_stream_decode_init ROUTECAP_BASE64(base64_stream_decode_init)
#define base64_stream_decode ROUTECAP_BASE64(base64_stream_decode)
#define base64_stream_encode_plain ROUTECAP_BASE64(base64_stream_encode_plain)
#define base64_stream_decode_plain ROUTECAP_BASE64(base64_stream_decode_plain)
#define base64_stream_encode_ssse3 ROUTECAP_BASE64(base64_stream_encode_ssse3)
#define base64_stream_decode_ssse3 ROUTECAP_BASE64(base64_stream_decode_ssse3)
#define base64_stream_encode_sse41 ROUTECAP_BASE64(base64_stream_encode_sse41)
#define base64_stream_decode_sse41 ROUTECAP_BASE64(base64_stream_decode_sse41)
#define base64_stream_encode_sse42 ROUTECAP_BASE64(base64_stream_encode_sse42)
#define base64_stream_decode_sse42 ROUTECAP_BASE64(base64_stream_decode_sse42)
#define base64_stream_encode_avx ROUTECAP_BASE64(base64_stream_encode_avx)
#define base64_stream_decode_avx ROUTECAP_BASE64(base64_stream_decode_avx)
#define base64_stream_encode_avx2 ROUTECAP_BASE64(base64_stream_encode_avx2)
#define base64_stream_decode_avx2 ROUTECAP_BASE64(base64_stream_decode_avx2)
#define base64_stream_encode_avx512 ROUTECAP_BASE64(base64_stream_encode_avx512)
#define base64_stream_decode_avx512 ROUTECAP_BASE64(base64_stream_decode_avx512)
#define base64_stream_encode_neon32 ROUTECAP_BASE64(base64_stream_encode_neon32)
#define base64_stream_decode_neon32 ROUTECAP_BASE64(base64_stream_decode_neon32)
#define base64_stream_encode_neon64 ROUTECAP_BASE64(base64_stream_encode_neon64)
#define base64_stream_decode_neon64 ROUTECAP_BASE64(base64_stream_decode_neon64)
#define base64_table_enc_6bit ROUTECAP_BASE64(base64_table_enc_6bit)
#define base64_table_enc_12bit ROUTECAP_BASE64(base64_table_enc_12bit)
#define base64_table_dec_8bit ROUTECAP_BASE64(base64_table_dec_8bit)
#define base64_table_dec_32bit_d0 ROUTECAP_BASE64(base64_table_dec_32bit_d0)
#define base64_table_dec_32bit_d1 ROUTECAP_BASE64(base64_table_dec_32bit_d1)
#define base64_table_dec_32bit_d2 ROUTECAP_BASE64(base64_table_dec_32bit_d2)
#define base64_table_dec_32bit_d3 ROUTECAP_BASE64(base64_table_dec_32bit_d3)
#define codec_choose ROUTECAP_BASE64(codec_choose)

#endif

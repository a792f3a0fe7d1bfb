/* Names of its own for BLAKE2b, so that a static routecap can be linked beside another one. */
#ifndef ROUTECAP_BLAKE2_CONFIG_H
#define ROUTECAP_BLAKE2_CONFIG_H

#define blake2 routecap_blake2
#define blake2b routecap_blake2b
#define blake2b_init routecap_blake2b_init
#define blake2b_init_key routecap_blake2b_init_key
#define blake2b_init_param routecap_blake2b_init_param
#define blake2b_update routecap_blake2b_update
#define blake2b_final routecap_blake2b_final

#endif
